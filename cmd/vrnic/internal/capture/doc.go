// Package capture takes the packets of ports of a daemon's switch, and makes pcapng of them.
//
// In the daemon a Set has the captures: each copies the frames that it sees into a bounded queue,
// from which a goroutine writes them to the socket of whoever asked, cut to packets as they would
// be on a wire. What finds the queue full is counted: nobody who moves a message waits for who
// looks at it. In the program that asked a Reader takes them from there; a Table knows which queue
// pairs they are of, a Filter which ones are wanted, and a Writer writes pcapng, into one file or a
// ring of files.
package capture
