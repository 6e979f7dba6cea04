package ring

// A mark is behind a step of docs/direct.md that the daemon makes. Tests stop or kill a daemon
// there which is built with the tag vrnic_marks: integration/verbs. In others there is nothing of
// it.
type mark uint32

const (
	_             mark = iota
	markMade           // a pair has all but PairMagic
	markAttached       // the rings heed it
	markBase           // to open: DirRecvBase is stored
	markOpen           // and DirOpen
	markShut           // to close: DirOpen is 0, DirSeq is to be looked at
	markClosed         // it was even
	markWaits          // it was odd
	markAwaits         // that takes longer
	markSettled        // it has changed, or its program has gone
	markRings          // it has, and the queue pair is to look for receives again
	markDone           // to go on behind DirRecvDone: that is loaded
	markPosted         // and QPRQProd
	markAdopted        // a stamp behind DirRecvDone counts as a message
	markUsed           // receives are used, and nobody has been told
	markPublished      // DirRecvBase is stored, QPSQDone is to come
	markRetired        // it has, the completion is to come
	markNotified       // the counts on a bell are taken, events are to come
	markRaised         // they have
	markEntry          // a key's entry has all but the key
	markKey            // and that
	markHidden         // to end it: it is 0, senders are to be looked at
	markBusy           // some are in the midst of a request
	markGone           // they have gone on, or there was none
	markFree           // the entry is free, the memory is not yet its owner's
	markJoined         // a sender is about to have the table
	markEnded          // the memory of a direction is not touched any more
)
