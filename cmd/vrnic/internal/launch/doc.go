// Package launch prepares programs to run with the C libraries of vrnic in place of rdma-core's.
//
// Find looks a program up as a shell does and says why the libraries would not work in it. Place
// puts the libraries where the program's loader finds them, safe from other users. Env merges what
// that takes into an environment. What is left is execve(2).
//
// Nothing here knows what the libraries do; package main brings the daemon in.
package launch
