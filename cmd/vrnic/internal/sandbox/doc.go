// Package sandbox takes from a daemon, when it has made what it is made of, all that it does not
// need any more: whoever gets to run code in it afterwards finds little to do. In this order:
//
//   - the user, if another one is wanted, and all capabilities but those that TAPs need;
//   - files and names of the kernel, by Landlock;
//   - system calls, by seccomp.
//
// What the kernel does not have is left out, and the Report says so; what it has and refuses is an
// error. All of it holds for every thread, those of C libraries too, and for good.
package sandbox
