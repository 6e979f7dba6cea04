// Package archtest holds no code, only tests of the repository as a whole: which package may
// import which, where system calls and unsafe may be used, and a few rules on files that no
// linter knows.
package archtest
