package iwarp

// CanPost says whether one more message can be posted.
func (e *Endpoint) CanPost() bool { return e.err == nil && !e.tx.full() }

// CanPostRead says whether a Read or an atomic can be posted.
func (e *Endpoint) CanPostRead() bool {
	return e.CanPost() && e.tx.readsPosted-e.tx.readsDone < uint32(e.p.ORD)
}

// postPayload makes room for a message of n octets of p.
func (e *Endpoint) postPayload(p Payload, n uint32) (*txMessage, error) {
	if p == nil && n > 0 {
		return nil, errNoPayload
	}
	return e.post()
}

// PostSend posts a Send of n octets of p: op is one of the four kinds, inv the STag for those that
// invalidate. p is read while the message goes out, until Host.Sent(token). It may be nil if n is
// 0. ErrOpcode, ErrQueueFull, ErrEnded. It does not allocate.
func (e *Endpoint) PostSend(token uint64, op Opcode, inv STag, p Payload, n uint32) error {
	if !op.IsSend() {
		return ErrOpcode
	}
	m, err := e.postPayload(p, n)
	if err != nil {
		return err
	}
	*m = txMessage{op: op, token: token, stag: inv, payload: p, n: n}
	return nil
}

// PostWrite posts an RDMA Write of n octets of p to the peer's (stag, to). Otherwise as PostSend.
func (e *Endpoint) PostWrite(token uint64, stag STag, to uint64, p Payload, n uint32) error {
	m, err := e.postPayload(p, n)
	if err != nil {
		return err
	}
	*m = txMessage{op: OpWrite, token: token, stag: stag, to: to, payload: p, n: n}
	return nil
}

// PostRead posts an RDMA Read of n octets from the peer's (srcSTag, srcTO) into the local
// (sinkSTag, sinkTO); the answer goes to Host.PlaceRead. ErrReadLimit: ORD Reads and atomics are
// outstanding. Otherwise as PostSend.
func (e *Endpoint) PostRead(token uint64, sinkSTag STag, sinkTO uint64, n uint32, srcSTag STag,
	srcTO uint64) error {
	m, err := e.postRequest()
	if err != nil {
		return err
	}
	*m = txMessage{op: OpReadRequest, token: token, stag: srcSTag, to: srcTO, n: n, sinkSTag: sinkSTag,
		sinkTO: sinkTO}
	e.tx.addRead(txRead{token: token, sinkSTag: sinkSTag, sinkTO: sinkTO, n: n})
	return nil
}

// PostAtomic posts an Atomic Request; the response goes to Host.EndAtomic. What FetchAdd does not
// use of a means nothing. ErrExtensions, ErrAtomicOp. Otherwise as PostRead.
func (e *Endpoint) PostAtomic(token uint64, a Atomic) error {
	switch {
	case !e.cfg.Extensions:
		return ErrExtensions
	case !a.Op.known():
		return ErrAtomicOp
	}
	m, err := e.postRequest()
	if err != nil {
		return err
	}
	*m = txMessage{op: OpAtomicRequest, token: token}
	e.tx.addRead(txRead{token: token, isAtomic: true, atomic: a})
	return nil
}

// PostImmediate posts Immediate Data, with a solicited event if se is set: data is its 8 octets as
// a big-endian number. ErrExtensions. Otherwise as PostSend.
func (e *Endpoint) PostImmediate(token uint64, se bool, data uint64) error {
	if !e.cfg.Extensions {
		return ErrExtensions
	}
	m, err := e.post()
	if err != nil {
		return err
	}
	op := OpImmediate
	if se {
		op = OpImmediateSE
	}
	*m = txMessage{op: op, token: token, to: data}
	return nil
}

// postRequest is post for a message on QN 1.
func (e *Endpoint) postRequest() (*txMessage, error) {
	if e.err == nil && e.tx.readsPosted-e.tx.readsDone >= uint32(e.p.ORD) {
		return nil, ErrReadLimit
	}
	return e.post()
}

func (e *Endpoint) post() (*txMessage, error) {
	if e.err != nil {
		return nil, ErrEnded
	}
	if e.tx.full() {
		return nil, ErrQueueFull
	}
	t := &e.tx
	t.ring = widen(t.ring, t.cur.sent, t.posted)
	m := t.message(t.posted)
	t.posted++
	t.stale()
	return m, nil
}
