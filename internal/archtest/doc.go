// Package archtest holds no code, only tests of the repository as a whole: which package may
// import which and which file of C may include or call which, how many files a folder has, where
// system calls and unsafe may be used, how long lines are, and that what documents and comments
// name is there: files, functions, tests, decisions, numbers of the ABI.
package archtest
