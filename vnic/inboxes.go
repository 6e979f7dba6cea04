package vnic

import (
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/vnic/internal/link/inbox"
)

// What waits for queue pairs that are being run, in octets of the memory that packets keep: of all
// of a user's, and of all of a device's. Beyond these packets are lost.
const (
	userInboxes   = 64 << 20
	deviceInboxes = 256 << 20
)

// inboxOf says what waits for a queue pair of each type: of one that is connected, a window of
// Sends and Writes of the peer's, one of answers to Reads, and ACKs. Datagrams come from anybody,
// and short ones by the thousand while the thread that runs the queue pair has no processor.
var inboxOf = map[rdma.QPType]inbox.Config{
	rdma.RC: {Packets: 2560, Octets: 8 << 20},
	rdma.UC: {Packets: 2560, Octets: 8 << 20},
	rdma.UD: {Packets: 4096, Octets: 4 << 20, Heads: true},
}

// newInbox is where packets for qp wait.
func (qp *QP) newInbox() *inbox.Inbox {
	c := inboxOf[qp.Type()]
	c.Budget = qp.ctx.inbox
	return inbox.New(c)
}

// inboxes are what waits for the queue pairs of a device, by users.
type inboxes struct {
	all *inbox.Budget
	of  map[any]*userInbox
}

// A userInbox is what waits for those of one user, who has so many contexts.
type userInbox struct {
	inbox.Budget
	contexts int
}

func newInboxes() inboxes {
	return inboxes{&inbox.Budget{Max: deviceInboxes}, make(map[any]*userInbox)}
}

// join is what bounds a new context of user's.
func (x *inboxes) join(user any) *inbox.Budget {
	u := x.of[user]
	if u == nil {
		u = &userInbox{Budget: inbox.Budget{Max: userInboxes, Parent: x.all}}
		if user != nil {
			x.of[user] = u
		}
	}
	u.contexts++
	return &u.Budget
}

// leave takes a join back.
func (x *inboxes) leave(user any) {
	if u := x.of[user]; u != nil {
		if u.contexts--; u.contexts == 0 {
			delete(x.of, user)
		}
	}
}
