package check

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
)

// Level is how sure it is that a finding is to be mended.
type Level string

// Levels.
const (
	Wrong Level = "wrong" // it fails, or will on another device or day
	Note  Level = "note"  // it may be meant
)

// A wording says what a finding is, what comes of it and what to do.
type wording struct {
	level Level
	title string
	text  func(f *Finding) string
}

// words has one for each fact that the library tells.
var words = map[string]wording{
	"leak": {Wrong, "objects are left at the end", func(f *Finding) string {
		o := f.object("object")
		n := f.Numbers["count"]
		return fmt.Sprintf("The program has ended and left %s; what takes it back is "+
			"%s. The kernel does so for a process that ends; one that goes on runs "+
			"out of them.",
			several(n, o.Kind, f.Numbers["octets"]), endsWith[o.Kind])
	}},
	"busy": {Wrong, "destroyed too early", func(f *Finding) string {
		return fmt.Sprintf("%s was refused with EBUSY and has destroyed nothing: %s by "+
			"then, %s. Destroy those first.", f.Texts["call"], stillHang(f),
			hanging(f))
	}},
	"closed": {Wrong, "destroyed too early", func(f *Finding) string {
		return fmt.Sprintf("%s was called while %s, %s. Destroy those first: they "+
			"cannot be used any more, and on other devices the call fails or what "+
			"is left crashes.", f.Texts["call"], stillHang(f),
			hanging(f))
	}},
	"dead-key": {Wrong, "memory is used after its region has gone", func(f *Finding) string {
		return fmt.Sprintf("A request names lkey %#x, whose region, %s, was "+
			"deregistered before. It completes with IBV_WC_LOC_PROT_ERR, and its "+
			"queue pair is in error. Deregister when the last request has completed.",
			f.Numbers["lkey"], describe(f.object("made")))
	}},
	"dead-rkey": {Wrong, "a peer uses memory after its region has gone", func(f *Finding) string {
		return fmt.Sprintf("%s, with rkey %#x, whose region, %s, was deregistered before. "+
			"It was refused, and the connection is over. Deregister what peers have "+
			"the key of when they have said that they are done with it.",
			asked(f), f.Numbers["rkey"], describe(f.object("made")))
	}},
	"stranger": {Wrong, "a key used by a stranger", func(f *Finding) string {
		return fmt.Sprintf("%s, with rkey %#x, of %s, which was registered in another "+
			"protection domain than the queue pair's. It was refused, and the "+
			"connection is over. A key is for peers of queue pairs of its own domain: "+
			"do not pass it on, or register the region in theirs, too.",
			asked(f), f.Numbers["rkey"], describe(f.object("made")))
	}},
	"peer-outside": {Wrong, "a peer goes beyond a region", func(f *Finding) string {
		return fmt.Sprintf("%s, with rkey %#x, whose region has the %d octets from %#x on. "+
			"It was refused, and the connection is over. Tell the peer address and "+
			"length as they were registered, in the order of octets that it expects.",
			asked(f), f.Numbers["rkey"], f.object("made").Octets, f.Numbers["begin"])
	}},
	"no-right": {Wrong, "a peer asks for a right that it has not", func(f *Finding) string {
		return fmt.Sprintf("%s, with rkey %#x, of %s, which was not registered for that. "+
			"It was refused, and the connection is over. What peers may do is "+
			"IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ and "+
			"IBV_ACCESS_REMOTE_ATOMIC.",
			asked(f), f.Numbers["rkey"], describe(f.object("made")))
	}},
	"refused-key": {Wrong, "a key that the peer refuses", func(f *Finding) string {
		return fmt.Sprintf("A request names %d octets at %#x of the peer's memory with rkey "+
			"%#x, and the peer has refused them (IBV_WC_REM_ACCESS_ERR): it has no "+
			"region of that key, or not any more, or one of another protection domain, "+
			"of fewer octets or for something else. Use key, address and length as the "+
			"peer has told them, until it says that they end.",
			f.Numbers["length"], f.Numbers["addr"], f.Numbers["rkey"])
	}},
	"deregistered-in-use": {Wrong, "a region goes while a request uses it", func(f *Finding) string {
		return fmt.Sprintf("%s was deregistered while a request that names it was "+
			"posted and its completion had not been polled: the device may still be "+
			"at it. Poll the completion first.",
			capital(describe(f.object("made"))))
	}},
	"freed": {Wrong, "registered memory is freed", func(f *Finding) string {
		return fmt.Sprintf("%s gave back %d octets at %#x, which hold %s that is still "+
			"registered. What the allocator puts there next the device reads and "+
			"writes, too. Call ibv_dereg_mr before %s.",
			f.Texts["call"], f.Numbers["length"], f.Numbers["addr"], describe(f.object("made")),
			f.Texts["call"])
	}},
	"outside": {Wrong, "a request goes beyond its region", func(f *Finding) string {
		o := f.object("made")
		return fmt.Sprintf("A request names %d octets at %#x with lkey %#x, whose "+
			"region has the %d octets from %#x on. It completes with "+
			"IBV_WC_LOC_PROT_ERR.", f.Numbers["length"], f.Numbers["addr"],
			f.Numbers["lkey"], o.Octets, f.Numbers["begin"])
	}},
	"other-domain": {Wrong, "a key of another protection domain", func(f *Finding) string {
		return fmt.Sprintf("A request names lkey %#x, of %s, which was registered in "+
			"another protection domain than the queue pair's. It completes with "+
			"IBV_WC_LOC_PROT_ERR. Register it with the PD that the queue pair was "+
			"made with.", f.Numbers["lkey"], describe(f.object("made")))
	}},
	"swapped-key": {Wrong, "a key the wrong way round", func(f *Finding) string {
		return fmt.Sprintf("A request names lkey %#x, which no region has; one has it "+
			"with its octets in reverse. Keys of the own side are used as they are: "+
			"no htonl, no ntohl.", f.Numbers["lkey"])
	}},
	"swapped-address": {Wrong, "an address the wrong way round", func(f *Finding) string {
		return fmt.Sprintf("A request names the address %#x, which is outside of its "+
			"region; with its octets in reverse it is inside. What came from the "+
			"network as a big-endian number wants be64toh.", f.Numbers["addr"])
	}},
	"not-writable": {Wrong, "a region that must not be written", func(f *Finding) string {
		return fmt.Sprintf("A receive, RDMA Read or atomic is to put octets into %s, "+
			"which was registered without IBV_ACCESS_LOCAL_WRITE. It completes with "+
			"IBV_WC_LOC_PROT_ERR.",
			describe(f.object("made")))
	}},
	"changed": {Wrong, "a buffer is written while the device has it", func(f *Finding) string {
		return fmt.Sprintf("The octets of a Send or Write, %d at %#x, were others when "+
			"its completion was polled than when it was posted. The buffer is the "+
			"device's until then: the peer gets old octets, new ones or both. Write "+
			"after the completion, or to another buffer.",
			f.Numbers["length"], f.Numbers["addr"])
	}},
	"early-read": {Wrong, "a buffer is read before its request is over", func(f *Finding) string {
		return fmt.Sprintf("The program has read at %#x, where %s that it has posted puts what comes, "+
			"and had not polled its completion. What it finds is old octets, new ones or both. "+
			"Read when the completion has been polled.", f.Numbers["addr"], f.Texts["request"])
	}},
	"never-polled": {Wrong, "completions are never polled", func(f *Finding) string {
		return fmt.Sprintf("Signaled requests (%d) were posted to a queue pair, and until "+
			"its end none of their completions was polled. Whether they have worked "+
			"is not known, and when the completion queue is full it overruns, which "+
			"ends its queue pairs.", f.Numbers["requests"])
	}},
	"small-cq": {Wrong, "the completion queue is too small", func(f *Finding) string {
		return fmt.Sprintf("%d completions may come before the next one is polled: of "+
			"signaled requests and of receives that are posted. The completion "+
			"queue was made for %d; a device may have made it larger, others do "+
			"not. When it overruns its queue pairs are in error. Make it larger, or "+
			"poll before posting.", f.Numbers["requests"], f.Numbers["room"])
	}},
	"unsignaled": {Wrong, "a send queue full of unsignaled requests", func(f *Finding) string {
		return fmt.Sprintf("%d requests are in a send queue for %d, and none is "+
			"signaled: no completion will ever say that their places are free. "+
			"Other devices refuse the next one with ENOMEM. Give at least one in %d "+
			"IBV_SEND_SIGNALED, and poll its completion.", f.Numbers["requests"],
			f.Numbers["room"], f.Numbers["room"])
	}},
	"no-receive": {Wrong, "messages have found no receive", func(f *Finding) string {
		return fmt.Sprintf("Messages (%d) have come to a queue pair that had no receive "+
			"posted. This device has let them wait. On others iWARP ends the "+
			"connection with a Terminate, and RoCE answers RNR, which costs time "+
			"and ends it after rnr_retry times. Post receives before the peer may "+
			"send: before rdma_accept or rdma_connect, and again before the answer "+
			"that lets it go on.",
			f.Numbers["messages"])
	}},
	"error-ignored": {Wrong, "an error completion was not looked at", func(f *Finding) string {
		return fmt.Sprintf("A completion of a queue pair had another status than "+
			"IBV_WC_SUCCESS, and after it was polled %d more requests were posted "+
			"there. A queue pair in error does none of them: they come back "+
			"flushed. Look at wc.status of each completion.", f.Numbers["requests"])
	}},
	"unacked": {Wrong, "events that are not acknowledged", func(f *Finding) string {
		return fmt.Sprintf("%s waits until all events of %s have been acknowledged, and "+
			"%s not: it hangs. Each event that was got is given back by %s.",
			f.Texts["call"], describe(f.object("object")),
			was(f.Numbers["events"]), ackedBy[f.object("object").Kind])
	}},
	"forked": {Wrong, "a child of fork uses its parent's objects", func(f *Finding) string {
		return fmt.Sprintf("A request was posted in a process that fork has made, to %s of its "+
			"parent. A queue belongs to one process: two write the same places there, "+
			"and the device knows the memory of the one only. Open the device anew in "+
			"the child.", describe(f.object("qp")))
	}},
	"long-private-data": {Note, "private data that others do not carry", func(f *Finding) string {
		return fmt.Sprintf("%s carries %d octets of private data. That goes on iWARP; "+
			"InfiniBand and RoCE have room for %d.", f.Texts["call"],
			f.Numbers["length"], f.Numbers["room"])
	}},
	"wide-access": {Note, "rights that no peer has made use of", func(f *Finding) string {
		return fmt.Sprintf("%s was registered for peers to %s, and until the program's end none has "+
			"done so, of any of its regions. Who has learned a key can do what its rights say: give those "+
			"that are needed.", capital(fmt.Sprintf("a memory region of %d octets", f.Numbers["length"])),
			remoteRights(f.Numbers["access"]))
	}},
	"draining": {Note, "a state that other cards refuse", func(f *Finding) string {
		return fmt.Sprintf("ibv_modify_qp has taken %s to IBV_QPS_SQD. That is in the specification, "+
			"and there here; NVIDIA's mlx5 refuses it with EINVAL. Draining is over, too, when a "+
			"signaled request that is the last one has completed.", describe(f.object("qp")))
	}},
	"out-of-error": {Note, "a way back that other cards have not", func(f *Finding) string {
		return fmt.Sprintf("ibv_modify_qp has taken %s out of an error. That is there here; of cards "+
			"that speak iWARP Linux's siw leaves the queue pair in error, and says nothing, and Intel's "+
			"irdma does so too, or refuses with EINVAL. Make another queue pair.", describe(f.object("qp")))
	}},
	"many-reads": {Note, "more Reads at once than other cards have", func(f *Finding) string {
		return fmt.Sprintf("ibv_modify_qp gives %s %d Reads and atomics at once (max_rd_atomic, "+
			"max_dest_rd_atomic). That is there here; NVIDIA's mlx5 has 16, and refuses more with EINVAL. "+
			"ibv_query_device says how many a device has, in max_qp_rd_atom and max_qp_init_rd_atom.",
			describe(f.object("qp")), f.Numbers["asked"])
	}},
	"long-inline": {Note, "more inline than other cards have room for", func(f *Finding) string {
		return fmt.Sprintf("A queue pair is asked for with %d octets inline (max_inline_data). That is "+
			"there here; some cards have room for %d, and refuse to make it. Ask for less, or for "+
			"less again when ibv_create_qp fails.", f.Numbers["length"], f.Numbers["room"])
	}},
}

// asked says what a peer wanted.
func asked(f *Finding) string {
	return fmt.Sprintf("The peer of %s has asked for an %s of %d octets at %#x",
		describe(f.object("qp")), f.Texts["use"], f.Numbers["length"], f.Numbers["addr"])
}

// remoteRights are those of enum ibv_access_flags that are peers'.
func remoteRights(access uint64) string {
	var list []string
	for _, r := range []struct {
		bit  uint64
		name string
	}{{1 << 1, "write (IBV_ACCESS_REMOTE_WRITE)"}, {1 << 2, "read (IBV_ACCESS_REMOTE_READ)"},
		{1 << 3, "change by atomics (IBV_ACCESS_REMOTE_ATOMIC)"}} {
		if access&r.bit != 0 {
			list = append(list, r.name)
		}
	}
	return strings.Join(list, " and ")
}

// kinds names objects for people, and endsWith the calls that end them.
var kinds = map[string]string{
	"ah": "address handle", "mw": "memory window", "mr": "memory region", "qp": "queue pair",
	"srq": "shared receive queue", "cq": "completion queue", "channel": "completion channel",
	"pd": "protection domain", "context": "open device", "id": "rdma_cm_id",
	"event-channel": "event channel",
}

var endsWith = map[string]string{
	"ah": "ibv_destroy_ah", "mw": "ibv_dealloc_mw", "mr": "ibv_dereg_mr",
	"qp":  "ibv_destroy_qp (rdma_destroy_qp for one of rdma_create_qp)",
	"srq": "ibv_destroy_srq", "cq": "ibv_destroy_cq", "channel": "ibv_destroy_comp_channel",
	"pd": "ibv_dealloc_pd", "context": "ibv_close_device", "id": "rdma_destroy_id",
	"event-channel": "rdma_destroy_event_channel",
}

var ackedBy = map[string]string{
	"cq": "ibv_ack_cq_events (asynchronous ones by ibv_ack_async_event)", "qp": "ibv_ack_async_event",
	"srq": "ibv_ack_async_event", "id": "rdma_ack_cm_event",
}

func describe(o Object) string {
	switch o.Kind {
	case "mr":
		return fmt.Sprintf("a memory region of %d octets (lkey %#x)", o.Octets, o.Number)
	case "qp":
		return fmt.Sprintf("queue pair %d", o.Number)
	case "cq":
		return fmt.Sprintf("a completion queue for %d", o.Octets)
	}
	name := nameOf(o.Kind)
	return article(name) + " " + name
}

func nameOf(kind string) string {
	if name := kinds[kind]; name != "" {
		return name
	}
	return "object"
}

func article(name string) string {
	if strings.ContainsRune("aeior", rune(name[0])) {
		return "an"
	}
	return "a"
}

func several(n uint64, kind string, octets uint64) string {
	switch {
	case kind == "mr" && n == 1:
		return fmt.Sprintf("a memory region of %d octets registered", octets)
	case kind == "mr":
		return fmt.Sprintf("%d memory regions registered, %d octets in all", n, octets)
	case n == 1:
		return article(nameOf(kind)) + " " + nameOf(kind) + " behind"
	}
	return fmt.Sprintf("%d %ss behind", n, nameOf(kind))
}

func stillHang(f *Finding) string {
	n := f.Numbers["hanging"]
	if n == 1 {
		return "one object still hung on " + describe(f.object("object"))
	}
	return fmt.Sprintf("%d objects still hung on %s", n, describe(f.object("object")))
}

func hanging(f *Finding) string {
	var list []string
	for _, o := range f.Objects {
		if o.Role == "hangs" {
			list = append(list, describe(o))
		}
	}
	text := strings.Join(list, ", ")
	if uint64(len(list)) < f.Numbers["hanging"] {
		text += " and others"
	}
	return text
}

func was(n uint64) string {
	if n == 1 {
		return "one was"
	}
	return fmt.Sprintf("%d were", n)
}

func capital(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// roles says what happened at a site.
var roles = map[string]string{
	"post": "posted by", "here": "called by", "made": "registered by", "gone": "deregistered by",
	"polled": "polled by", "read": "read by", "event": "the event was got by",
	"hangs":  "one that hangs was made by",
	"object": "made by", "qp": "the queue pair was made by", "cq": "the completion queue was made by",
}

// place is a frame in one line.
func (f Frame) place() string {
	name := f.Function
	if name == "" {
		name = fmt.Sprintf("%s+%#x", filepath.Base(f.Module), f.Offset)
	}
	switch {
	case f.File != "":
		return fmt.Sprintf("%s (%s:%d)", name, filepath.Base(f.File), f.Line)
	case f.Function != "":
		return fmt.Sprintf("%s (in %s)", name, filepath.Base(f.Module))
	}
	return name
}

// maxPlaces is how far back a place is followed.
const maxPlaces = 3

// write prints a finding.
func (f *Finding) write(w io.Writer, number int) {
	var b strings.Builder
	fmt.Fprintf(&b, "vrnic check: %d. %s\n", number, f.Title)
	for _, line := range wrap(f.Text, 90) {
		fmt.Fprintf(&b, "    %s\n", line)
	}
	for _, s := range f.Sites {
		role := roles[s.Role]
		if role == "" {
			role = s.Role
		}
		for i, frame := range s.Frames[:min(len(s.Frames), maxPlaces)] {
			if i > 0 {
				role = "    from"
			}
			fmt.Fprintf(&b, "      %s %s\n", role, frame.place())
		}
	}
	_, _ = io.WriteString(w, b.String()) // who listens may have gone
}

func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// writeJSON is a finding in one line.
func (f *Finding) writeJSON(w io.Writer) error { return json.NewEncoder(w).Encode(f) }
