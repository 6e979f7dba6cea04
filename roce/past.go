package roce

// Where both ends are in one process a device may carry requests out itself, past the engines, as
// long as nothing is under way. They have PSNs all the same, so that the next can go as packets.

// Packets is how many packets a message of n octets has, and how many PSNs, a Read or an atomic
// too: n is what is answered then.
func Packets(n, mtu uint32) uint32 { return packets(n, mtu) }

// Rests reports that no request of this side is under way or waits.
func (c *RC) Rests() bool { return c.sq.head == c.sq.tail && c.fault == nil }

// Pass counts a request that has n PSNs as done. c rests.
func (c *RC) Pass(n uint32) {
	s := &c.sq
	s.ssn++
	s.post = s.post.Add(n)
	s.una, s.high = s.post, s.post
	s.retries, s.rnrRetries = c.cfg.Retries, c.cfg.RNRRetries
}

// Serves reports that no request of the peer's is under way, or was refused and is to come again.
func (c *RC) Serves() bool {
	r := &c.rq
	return c.fault == nil && !r.assembly.inside() && len(r.queue) == 0 && !r.waiting && !r.nakSent &&
		!r.nakDue
}

// Passed counts requests of the peer as carried out that have n PSNs together. c serves.
func (c *RC) Passed(n, requests uint32) {
	if requests == 0 {
		return
	}
	r := &c.rq
	r.started = true
	r.expected = r.expected.Add(n)
	r.acks = r.expected.Add(allBack)
	r.msn = (r.msn + requests) & 0xffffff
}

// Rests, Pass, Serves and Passed are as those of an RC.
func (c *UC) Rests() bool        { return c.head == c.tail && c.fault == nil }
func (c *UC) Pass(n uint32)      { c.psn = c.psn.Add(n) }
func (c *UC) Serves() bool       { return !c.assembly.inside() }
func (c *UC) Passed(n, _ uint32) { c.expected = c.expected.Add(n) }
