package server

import (
	"cmp"
	"encoding/json"
	"iter"
	"slices"
	"syscall"

	"github.com/vrnic/vrnic/shm/osmem"
	"github.com/vrnic/vrnic/shm/rpc"
)

// A listing is what a LIST or STAT goes through while the client pages through it.
type listing struct {
	op    rpc.Op
	kind  uint32
	given uint64 // rows: where the client has to go on
	next  func() (row any, ok bool)
	stop  func()
	row   []byte // the one that comes next, for want of room; nil: none
}

// end forgets what is left.
func (l *listing) end() {
	if l.stop != nil {
		l.stop()
	}
	*l = listing{}
}

// maxListRow leaves room for the newline.
const maxListRow = rpc.ListData - 1

func (o *operation) list(req *rpc.ListRequest) (*rpc.ListReply, error) {
	if req.Flags != 0 {
		return nil, syscall.EINVAL
	}
	l := &o.s.list
	if req.Cursor == 0 {
		rows, err := o.rows(req.Kind)
		if err != nil {
			return nil, err
		}
		l.end()
		l.op, l.kind = o.h.Op, req.Kind
		l.next, l.stop = iter.Pull(rows)
	} else if l.op != o.h.Op || l.kind != req.Kind || req.Cursor != l.given {
		return nil, syscall.EINVAL
	}
	r := &rpc.ListReply{}
	for {
		if l.row == nil {
			if l.row = l.marshalNext(); l.row == nil {
				l.end()
				return r, nil
			}
		}
		if int(r.Len)+len(l.row)+1 > rpc.ListData {
			r.Next = l.given
			return r, nil
		}
		r.Len += uint32(copy(r.Data[r.Len:], l.row))
		r.Data[r.Len] = '\n'
		r.Len++
		l.row = nil
		l.given++
		o.s.listed++
	}
}

// marshalNext is the next row; nil: there is none.
func (l *listing) marshalNext() []byte {
	v, ok := l.next()
	if !ok {
		return nil
	}
	row, err := json.Marshal(v)
	switch {
	case err != nil:
		return []byte(`{"error":"row that is no JSON"}`)
	case len(row) > maxListRow:
		return []byte(`{"error":"row too long"}`)
	}
	return row
}

func (o *operation) rows(kind uint32) (iter.Seq[any], error) {
	all := o.s.Privileged()
	switch {
	case o.h.Op == rpc.OpStat:
		if kind != 0 {
			return nil, syscall.EINVAL
		}
		return o.s.h.Stat(all), nil
	case kind == rpc.ListClient:
		return o.s.srv.clients(o.s, all), nil
	case kind == rpc.ListUser:
		return o.s.srv.users(o.s, all), nil
	case kind >= rpc.ListDev && kind <= rpc.ListCtx:
		return o.s.h.List(kind, all)
	}
	return nil, syscall.EINVAL
}

// Objects are what a session, or all of a user, have.
type Objects struct {
	PDs     int   `json:"pd"`
	MRs     int   `json:"mr"`
	Mems    int   `json:"mem"`
	MemSize int64 `json:"mem_bytes"`
	CQs     int   `json:"cq"`
	QPs     int   `json:"qp"`
	SRQs    int   `json:"srq"`
	MWs     int   `json:"mw"`
	IDs     int   `json:"cm_id"`
	Rings   int64 `json:"ring_bytes"`
}

func (o *Objects) add(p *Objects) {
	o.PDs += p.PDs
	o.MRs += p.MRs
	o.Mems += p.Mems
	o.MemSize += p.MemSize
	o.CQs += p.CQs
	o.QPs += p.QPs
	o.SRQs += p.SRQs
	o.MWs += p.MWs
	o.IDs += p.IDs
	o.Rings += p.Rings
}

// A ClientRow is a row of LIST client.
type ClientRow struct {
	Session uint32 `json:"session"`
	PID     int32  `json:"pid"`
	UID     uint32 `json:"uid"`
	GID     uint32 `json:"gid"`
	Guest   string `json:"socket,omitempty"` // the name of a Guest's
	Comm    string `json:"comm"`
	// hello, live, ending; stuck: ended, and a copy into its memory hangs
	State   string `json:"state"`
	Seconds int64  `json:"seconds"`
	Objects
	Copies int `json:"copies"` // of mode 0 memory, under way
	// how memory of its own is reached: descriptor, or process, which is faster; "": none is lent
	Own string `json:"own_memory"`
	Me  bool   `json:"me,omitempty"`
}

// A UserRow is a row of LIST user: what all sessions of one user have.
type UserRow struct {
	UID      uint32 `json:"uid"`
	Guest    string `json:"socket,omitempty"` // all users of it
	Sessions int    `json:"sessions"`
	Objects
	Regions  int64 `json:"regions"`
	Mappings int64 `json:"mappings"`
	Pipes    int64 `json:"pipes"`
	Queues   int64 `json:"queue_bytes"`
	Me       bool  `json:"me,omitempty"`
}

// Users sums Clients up, by user or socket: who has most sessions comes first.
func (s *Server) Users() []UserRow {
	of := make(map[account]*UserRow)
	var rows []*UserRow
	for _, c := range s.Clients() {
		who := accountOf(c.Guest, osmem.Peer{UID: c.UID})
		r := of[who]
		if r == nil {
			r = &UserRow{UID: who.uid, Guest: who.guest, Regions: s.regions.of(who),
				Mappings: s.mappings.of(who), Pipes: s.pipes.of(who), Queues: s.queues.of(who)}
			of[who], rows = r, append(rows, r)
		}
		r.Sessions++
		r.add(&c.Objects)
	}
	slices.SortFunc(rows, func(a, b *UserRow) int {
		return cmp.Or(cmp.Compare(b.Sessions, a.Sessions), cmp.Compare(a.UID, b.UID),
			cmp.Compare(a.Guest, b.Guest))
	})
	out := make([]UserRow, len(rows))
	for i, r := range rows {
		out[i] = *r
	}
	return out
}

// Clients describes all sessions, oldest first.
func (s *Server) Clients() []ClientRow {
	s.mu.Lock()
	all := make([]*Session, 0, len(s.sessions))
	for sess := range s.sessions {
		all = append(all, sess)
	}
	s.mu.Unlock()
	rows := make([]ClientRow, len(all))
	for i, sess := range all {
		rows[i] = sess.row()
	}
	slices.SortFunc(rows, func(a, b ClientRow) int { return int(int64(a.Session) - int64(b.Session)) })
	return rows
}

func (s *Session) row() ClientRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := ClientRow{Session: s.id, PID: s.peer.PID, UID: s.peer.UID, GID: s.peer.GID,
		Guest: s.guest, Comm: s.comm,
		State: s.state, Seconds: int64(s.srv.cfg.Now().Sub(s.since).Seconds()),
		Objects: Objects{PDs: len(s.pds.m), MRs: len(s.mrs.m), Mems: len(s.mems.m), MemSize: s.memBytes,
			CQs: len(s.cqs.m), QPs: len(s.qps.m), SRQs: len(s.srqs.m), MWs: len(s.mws.m),
			IDs: len(s.ids.m), Rings: s.ringBytes}}
	if s.app != nil {
		r.Copies, r.Own = s.app.Busy(), "descriptor"
		if s.app.ByProcess() {
			r.Own = "process"
		}
	}
	if s.ended() && (r.Copies > 0 || r.State == "live") {
		r.State = "stuck" // in a copy, or still in the request that was under way
	}
	return r
}

func (s *Server) users(me *Session, all bool) iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, r := range s.Users() {
			r.Me = account{r.Guest, r.UID} == me.account()
			if (all || r.Me) && !yield(r) {
				return
			}
		}
	}
}

func (s *Server) clients(me *Session, all bool) iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, r := range s.Clients() {
			r.Me = r.Session == me.id
			if (all || r.Me) && !yield(r) {
				return
			}
		}
	}
}
