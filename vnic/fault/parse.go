package fault

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vrnic/vrnic/iwarp"
	"github.com/vrnic/vrnic/rdma"
	"github.com/vrnic/vrnic/roce/mad"
	"github.com/vrnic/vrnic/roce/packet"
	"github.com/vrnic/vrnic/vnic"
)

// What can fail.
const (
	// Calls of programs.
	AllocPD   = "alloc_pd"
	RegMR     = "reg_mr"
	AllocMW   = "alloc_mw"
	CreateCQ  = "create_cq"
	CreateSRQ = "create_srq"
	CreateQP  = "create_qp"
	// Doorbell is that of a send request.
	Doorbell = "doorbell"
	// Connect is a connection that a program asks for.
	Connect = "connect"
	// Recv is a message that comes.
	Recv = "recv"
	// Device is the device as a whole.
	Device = "device"
)

var calls = []string{AllocPD, RegMR, AllocMW, CreateCQ, CreateSRQ, CreateQP}

// errnos are those that calls can fail with.
var errnos = map[string]syscall.Errno{
	"ENOMEM": syscall.ENOMEM, "EINVAL": syscall.EINVAL, "EAGAIN": syscall.EAGAIN,
	"ENOSPC": syscall.ENOSPC, "EPERM": syscall.EPERM, "EFAULT": syscall.EFAULT, "EIO": syscall.EIO,
}

// requests are the operations of each word, nil: all.
var requests = map[string][]rdma.Opcode{
	"send":  {rdma.OpSend, rdma.OpSendInv, rdma.OpSendImm},
	"write": {rdma.OpWrite, rdma.OpWriteImm},
	"read":  {rdma.OpRead},
	"atomic": {rdma.OpFetchAdd, rdma.OpCompareSwap, rdma.OpMaskedFetchAdd,
		rdma.OpMaskedCompareSwap},
	"key":     {rdma.OpBindMW, rdma.OpRegMR, rdma.OpLocalInv},
	"request": nil,
}

// statuses are those of enum ibv_wc_status that a completion can have, without IBV_WC_.
var statuses = map[string]rdma.WCStatus{
	"loc_len_err": rdma.WCLocLen, "loc_qp_op_err": rdma.WCLocQPOp, "loc_prot_err": rdma.WCLocProt,
	"wr_flush_err": rdma.WCFlush, "mw_bind_err": rdma.WCMWBind, "bad_resp_err": rdma.WCBadResp,
	"loc_access_err": rdma.WCLocAccess, "rem_inv_req_err": rdma.WCRemInvReq,
	"rem_access_err": rdma.WCRemAccess, "rem_op_err": rdma.WCRemOp,
	"retry_exc_err": rdma.WCRetryExc, "rnr_retry_exc_err": rdma.WCRNRRetry,
	"fatal_err": rdma.WCFatal, "general_err": rdma.WCGeneral,
}

// What becomes of a request, beside a status.
const (
	invalidate = "invalidate" // the key of its memory ends
	ird        = "ird"        // the peer has no room for it
	cqErr      = "cq_err"     // its completion queue loses it
	terminate  = "terminate"  // a Terminate is sent, with the code that follows
	terminated = "terminated" // one comes
	nak        = "nak"        // what the peer asks for next is refused with the NAK that follows
)

var naks = map[string]packet.Syndrome{
	"invalid": packet.NAKInvalid, "access": packet.NAKAccess, "operation": packet.NAKOperational,
}

// What becomes of a doorbell.
const (
	lost = "lost"
	late = "late"
)

// connects are what becomes of a connection: enum rdma_cm_event_type, and the status of the event
// on iWARP and, as InfiniBand's connection manager says why, on RoCE.
var connects = map[string]struct {
	event vnic.CMEventType
	iwarp syscall.Errno
	roce  mad.Reason
	words string
}{
	"reject":      {vnic.CMRejected, syscall.ECONNRESET, mad.ConsumerRejection, "the peer rejects"},
	"refused":     {vnic.CMRejected, syscall.ECONNREFUSED, mad.InvalidServiceID, "nobody listens"},
	"stale":       {vnic.CMRejected, syscall.ECONNRESET, mad.StaleConnection, "an old connection"},
	"timeout":     {vnic.CMUnreachable, syscall.ETIMEDOUT, 0, "the peer does not answer"},
	"unreachable": {vnic.CMUnreachable, syscall.EHOSTUNREACH, 0, "no way leads to the peer"},
	"error":       {vnic.CMConnectError, syscall.ECONNABORTED, 0, "the connection fails"},
}

// What becomes of a device.
const (
	portDown  = "port_down"
	gidChange = "gid_change"
	fatal     = "fatal"
	gone      = "gone"
	quiet     = "quiet"
)

var deviceWords = []string{portDown, gidChange, fatal, gone, invalidate, cqErr, quiet}

// A Fault has something fail on a device.
type Fault struct {
	Device string
	QPN    uint32 // of a queue pair; 0: all
	What   string // one of the above
	How    string // the word for what becomes of it

	Errno  syscall.Errno   // of a call
	Status rdma.WCStatus   // of a request or a receive; WCSuccess: none
	Cause  iwarp.TermCode  // of terminate and terminated
	NAK    packet.Syndrome // of nak

	After uint64        // so many do as ever before
	Count uint64        // so many fail; 0: all
	Share float64       // of all behind those, from 0 to 1
	Late  time.Duration // of a doorbell
	At    time.Duration // counted from Begin
	For   time.Duration // behind that; 0: without end

	line string
}

// maxFaults bounds those of a Set.
const maxFaults = 256

// Parse reads lines of the form
//
//	DEVICE[/QPN] WHAT HOW [after N] [count N] [percent P] [at TIME] [for TIME]
//
// Behind # there is a comment.
func Parse(text string) (all []Fault, err error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		f, err := parseFault(words)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, f)
	}
	switch err := lines.Err(); {
	case err != nil:
		return nil, err
	case len(all) == 0:
		return nil, errors.New("which fault? Say a device, what fails and how")
	case len(all) > maxFaults:
		return nil, fmt.Errorf("%d faults; %d are the most", len(all), maxFaults)
	}
	return all, nil
}

func parseFault(words []string) (f Fault, err error) {
	f = Fault{Share: 1, line: strings.Join(words, " ")}
	if len(words) < 3 {
		return f, fmt.Errorf("%q: want a device, what fails and how", f.line)
	}
	device, qpn, one := strings.Cut(words[0], "/")
	f.Device, f.What, f.How = device, words[1], words[2]
	if device == "" {
		return f, fmt.Errorf("%s: of which device?", words[0])
	}
	if one {
		n, err := strconv.ParseUint(qpn, 10, 24)
		if err != nil || n == 0 {
			return f, fmt.Errorf("%s: want DEVICE, or DEVICE/QPN for one queue pair", words[0])
		}
		f.QPN = uint32(n)
	}
	rest, err := f.parseHow(words[3:])
	if err != nil {
		return f, err
	}
	if err := f.parseWhen(rest); err != nil {
		return f, err
	}
	return f, f.lint()
}

// parseHow reads what becomes of what fails, and returns the words behind it.
func (f *Fault) parseHow(words []string) (rest []string, err error) {
	_, request := requests[f.What]
	var ok bool
	switch {
	case slices.Contains(calls, f.What):
		if f.Errno, ok = errnos[f.How]; !ok {
			return nil, among("error", f.How, slices.Sorted(maps.Keys(errnos)))
		}
	case request, f.What == Recv:
		return f.parseRequest(words)
	case f.What == Doorbell && f.How == lost:
		f.Late = vnic.Lost
	case f.What == Doorbell && f.How == late:
		if len(words) == 0 {
			return nil, errors.New("late: by how much?")
		}
		if f.Late, err = parseTime(words[0]); err == nil && f.Late == 0 {
			err = errors.New("late 0s is no fault")
		}
		return words[1:], err
	case f.What == Doorbell:
		return nil, among("what becomes of a doorbell,", f.How, []string{lost, late})
	case f.What == Connect:
		if _, ok := connects[f.How]; !ok {
			return nil, among("what becomes of a connection,", f.How, slices.Sorted(maps.Keys(connects)))
		}
	case f.What == Device:
		if !slices.Contains(deviceWords, f.How) {
			return nil, among("fault of a device", f.How, deviceWords)
		}
	default:
		return nil, among("what fails,", f.What, slices.Concat(calls,
			slices.Sorted(maps.Keys(requests)), []string{Recv, Doorbell, Connect, Device}))
	}
	return words, nil
}

func (f *Fault) parseRequest(words []string) (rest []string, err error) {
	var ok bool
	switch f.How {
	case terminate, terminated, nak:
		if len(words) == 0 {
			return nil, fmt.Errorf("%s: with which code?", f.How)
		}
		if f.How == nak {
			if f.NAK, ok = naks[words[0]]; !ok {
				return nil, among("NAK", words[0], slices.Sorted(maps.Keys(naks)))
			}
		} else if f.Cause, err = parseCause(words[0]); err != nil {
			return nil, err
		}
		f.Status, words = rdma.WCFlush, words[1:]
	case ird:
		f.Status, f.Cause = rdma.WCRemInvReq, iwarp.TermNoBuffer
	case invalidate, cqErr:
	default:
		if f.Status, ok = statuses[f.How]; !ok {
			return nil, among("what becomes of a request,", f.How, slices.Concat(
				slices.Sorted(maps.Keys(statuses)), []string{terminate, terminated, nak, ird, invalidate,
					cqErr}))
		}
	}
	return words, nil
}

// parseCause reads LAYER/TYPE/CODE, as a Terminate has them: 0/1/0x02.
func parseCause(s string) (c iwarp.TermCode, err error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return c, fmt.Errorf("%s: want LAYER/TYPE/CODE, as in 0/1/0x02", s)
	}
	for i, to := range []*uint8{&c.Layer, &c.Type, &c.Code} {
		bits := 4
		if i == 2 {
			bits = 8
		}
		n, err := strconv.ParseUint(parts[i], 0, bits)
		if err != nil {
			return c, fmt.Errorf("%s: layer and type are at most 15, the code 255", s)
		}
		*to = uint8(n)
	}
	return c, nil
}

// parseWhen reads when and how often.
func (f *Fault) parseWhen(words []string) (err error) {
	for ; len(words) > 0; words = words[2:] {
		if len(words) == 1 {
			return fmt.Errorf("%s: how many?", words[0])
		}
		switch words[0] {
		case "after":
			f.After, err = strconv.ParseUint(words[1], 10, 32)
		case "count":
			if f.Count, err = strconv.ParseUint(words[1], 10, 32); err == nil && f.Count == 0 {
				err = errors.New("count 0 is no fault")
			}
		case "percent":
			f.Share, err = strconv.ParseFloat(strings.TrimSuffix(words[1], "%"), 64)
			if f.Share /= 100; err == nil && !(f.Share > 0 && f.Share <= 1) {
				err = fmt.Errorf("percent %s: want more than 0, and at most 100", words[1])
			}
		case "at":
			f.At, err = parseTime(words[1])
		case "for":
			if f.For, err = parseTime(words[1]); err == nil && f.For == 0 {
				err = errors.New("for 0s is no fault")
			}
		default:
			err = fmt.Errorf("%q: want after, count, percent, at or for", words[0])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > 365*24*time.Hour {
		return 0, fmt.Errorf("%s: want a time, as in 500ms, 3s or 1m30s", s)
	}
	return d, nil
}

// lint says what of f makes no sense together.
func (f *Fault) lint() error {
	_, request := requests[f.What]
	switch {
	case f.QPN != 0 && !request && f.What != Recv && f.What != Doorbell:
		return fmt.Errorf("%s: that is of a device, not of one queue pair", f.What)
	case f.How == ird && f.What != "read" && f.What != "atomic":
		return errors.New("ird: only of read and of atomic, which the peer has to keep")
	case f.How == terminated && f.What == Recv:
		return errors.New("terminated: of a request, not of recv: what comes is no answer")
	case f.How == invalidate && f.What == Recv:
		return errors.New("invalidate: of a request, or of the device, not of recv")
	case f.How == nak && f.What != Recv:
		return fmt.Errorf("nak is what this side answers: of recv. The NAK of a peer is a status: %s",
			"rem_inv_req_err, rem_access_err or rem_op_err")
	case f.What == Device && (f.After > 0 || f.Count > 0 || f.Share < 1):
		return errors.New("of a device say at and for: nothing is counted")
	case f.What == Device && f.For > 0 && f.How != portDown && f.How != quiet:
		return fmt.Errorf("%s does not end: for is of port_down and quiet", f.How)
	}
	return nil
}

func among(what, word string, all []string) error {
	return fmt.Errorf("%s %s: there are %s", what, word, strings.Join(all, ", "))
}
