// Package server is the daemon's end of sessions: the socket, the handles of each client, and what
// bounds them. Behind it is a Handler, which the daemon implements over its devices.
//
// The daemon believes nothing that a client writes or sends: handles are looked up in the session's
// own tables, and a violation of the ABI ends that session as if the program had died.
//
// A Session has one control goroutine, which answers requests one at a time (session.go; ops.go,
// mr.go, qp.go, srq.go and cm.go have the operations), and one thread that looks after bells
// (bell.go), with the help of whoever has just brought the program something (linger.go).
package server
