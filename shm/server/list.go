package server

import (
	"encoding/json"
	"slices"
	"syscall"

	"github.com/vrnic/vrnic/shm/abi"
)

// A listSnapshot is what LIST or STAT found, kept while the client pages through it.
type listSnapshot struct {
	op   abi.Op
	kind uint32
	rows [][]byte
}

// maxListRow leaves room for the newline.
const maxListRow = abi.ListData - 1

func (o *operation) list(req *abi.ListRequest) (*abi.ListReply, error) {
	s := o.s
	if req.Flags != 0 {
		return nil, syscall.EINVAL
	}
	l := &s.list
	if req.Cursor == 0 {
		rows, err := o.rows(req.Kind)
		if err != nil {
			return nil, err
		}
		*l = listSnapshot{op: o.h.Op, kind: req.Kind, rows: rows}
	} else if l.op != o.h.Op || l.kind != req.Kind || req.Cursor >= uint64(len(l.rows)) {
		return nil, syscall.EINVAL
	}
	r := &abi.ListReply{}
	i := int(req.Cursor)
	for ; i < len(l.rows); i++ {
		row := l.rows[i]
		if len(row) > maxListRow {
			row = []byte(`{"error":"row too long"}`)
		}
		if int(r.Len)+len(row)+1 > abi.ListData {
			break
		}
		r.Len += uint32(copy(r.Data[r.Len:], row))
		r.Data[r.Len] = '\n'
		r.Len++
	}
	if i < len(l.rows) {
		r.Next = uint64(i)
	} else {
		*l = listSnapshot{}
	}
	return r, nil
}

func (o *operation) rows(kind uint32) ([][]byte, error) {
	all := seesAll(o.s.peer)
	switch {
	case o.h.Op == abi.OpStat:
		if kind != 0 {
			return nil, syscall.EINVAL
		}
		return o.s.h.Stat(all)
	case kind == abi.ListClient:
		return o.s.srv.clients(o.s, all), nil
	case kind >= abi.ListDev && kind <= abi.ListDaemon:
		return o.s.h.List(kind, all)
	}
	return nil, syscall.EINVAL
}

// A ClientRow is a row of LIST client.
type ClientRow struct {
	Session uint32 `json:"session"`
	PID     int32  `json:"pid"`
	UID     uint32 `json:"uid"`
	GID     uint32 `json:"gid"`
	Comm    string `json:"comm"`
	// hello, live, ending; stuck: ended, and a copy into its memory hangs
	State   string `json:"state"`
	Seconds int64  `json:"seconds"`
	PDs     int    `json:"pd"`
	MRs     int    `json:"mr"`
	Mems    int    `json:"mem"`
	MemSize int64  `json:"mem_bytes"`
	CQs     int    `json:"cq"`
	QPs     int    `json:"qp"`
	SRQs    int    `json:"srq"`
	MWs     int    `json:"mw"`
	IDs     int    `json:"cm_id"`
	Rings   int64  `json:"ring_bytes"`
	Copies  int    `json:"copies"` // of mode 0 memory, under way
	// how memory of its own is reached: descriptor, or process, which is faster; "": none is lent
	Own string `json:"own_memory"`
	Me  bool   `json:"me,omitempty"`
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
	r := ClientRow{Session: s.id, PID: s.peer.PID, UID: s.peer.UID, GID: s.peer.GID, Comm: s.comm,
		State:   s.state,
		Seconds: int64(s.srv.cfg.Now().Sub(s.since).Seconds()), PDs: len(s.pds.m), MRs: len(s.mrs.m),
		Mems:    len(s.mems.m),
		MemSize: s.memBytes, CQs: len(s.cqs.m), QPs: len(s.qps.m), SRQs: len(s.srqs.m), MWs: len(s.mws.m),
		IDs: len(s.ids.m), Rings: s.ringBytes}
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

func (s *Server) clients(me *Session, all bool) [][]byte {
	var out [][]byte
	for _, r := range s.Clients() {
		r.Me = r.Session == me.id
		if all || r.Me {
			b, err := json.Marshal(r)
			if err == nil {
				out = append(out, b)
			}
		}
	}
	return out
}
