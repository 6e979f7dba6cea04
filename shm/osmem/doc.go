// Package osmem is what the two ends ask of the operating system: memory that is shared (Region),
// memory that a client lends (Memory: a part of a Region, or of the client's own address space),
// and what wakes a process (EventFD, the pipe of EventWriter and EventReader).
//
// Memory that is shared belongs to a Region, which counts references and is unmapped at zero, never
// by a finalizer: the garbage collector does not know mappings.
package osmem
