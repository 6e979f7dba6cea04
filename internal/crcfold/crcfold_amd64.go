package crcfold

import "golang.org/x/sys/cpu"

// Available says whether Fold can be called.
var Available = cpu.X86.HasPCLMULQDQ && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// Fold is 16 octets, lo before hi, that have the remainder of the register c and the n octets at p.
//
//go:noescape
func Fold(c uint32, p *byte, n int, k *Polynomial) (lo, hi uint64)
