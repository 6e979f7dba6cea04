package main

import (
	"bytes"
	"os"
	"testing"
)

// What is generated is as go generate makes it.
func TestUpToDate(t *testing.T) {
	out, err := generate("../..")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range out {
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the table says: run go generate ./shm/rpc", name)
		}
	}
}
