package trace

import (
	"testing"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/capture"
)

func post(id uint64, op string, behind int) *capture.Event {
	return &capture.Event{Kind: capture.Post, WRID: id, Op: op, Behind: behind}
}

func completed(id uint64, op string) *capture.Event {
	return &capture.Event{Kind: capture.Complete, WRID: id, Op: op, Status: "success"}
}

// want wants a number; 0: none.
func want(t *testing.T, why string, got *uint64, want uint64) {
	t.Helper()
	if got == nil && want == 0 || got != nil && *got == want {
		return
	}
	if got == nil {
		t.Errorf("%s: no request, want %d", why, want)
		return
	}
	t.Errorf("%s: request %d, want %d", why, *got, want)
}

// Messages are of requests in their order, those that have none on the wire left out; answers are
// of the oldest that waits for one; numbers need not differ.
func TestRequests(t *testing.T) {
	var r requests
	for i, op := range []string{"SEND", "BIND_MW", "READ", "WRITE", "READ", "FETCH_ADD", "SEND"} {
		r.post(post(uint64(i%3+1), op, i))
	}
	want(t, "a Send", r.begin(send), 1)
	want(t, "a Write before its turn", r.begin(write), 0)
	want(t, "a Read", r.begin(read), 3)
	want(t, "a Write", r.begin(write), 1)
	want(t, "the second Read", r.begin(read), 2)
	want(t, "the beginning of the first answer", r.answer(read, false), 3)
	want(t, "its end", r.answer(read, true), 3)
	want(t, "the second answer", r.answer(read, true), 2)
	want(t, "an answer that nobody asked for", r.answer(read, true), 0)
	want(t, "the atomic", r.begin(atomic), 3)
	want(t, "its answer", r.answer(atomic, true), 3)
	for i, op := range []string{"SEND", "BIND_MW", "READ"} {
		r.complete(completed(uint64(i%3+1), op), false)
	}
	if len(r.list) != 4 {
		t.Errorf("%d are left, want 4: %+v", len(r.list), r.list)
	}
	r.complete(completed(9, "SEND"), true) // of which nobody has heard
	want(t, "the last Send", r.begin(send), 1)
}

// Where a stack takes messages before they go out, they are known behind their completion, too.
func TestLate(t *testing.T) {
	var r requests
	for i := range uint64(3) {
		r.post(post(i+1, "SEND", 0))
		r.complete(completed(i+1, "SEND"), true)
	}
	r.post(post(4, "WRITE", 0))
	for i := range uint64(3) {
		want(t, "a Send", r.begin(send), i+1)
	}
	want(t, "no more Sends", r.begin(send), 0)
	want(t, "a Write", r.begin(write), 4)
	r.complete(completed(4, "WRITE"), true)
	if len(r.list) != 0 || r.done != 0 {
		t.Errorf("left: %+v", r)
	}
	failed := completed(5, "SEND")
	failed.Status = "flushed"
	r.post(post(5, "SEND", 0))
	r.complete(failed, true)
	if len(r.list) != 0 {
		t.Errorf("what was flushed is waited for: %+v", r)
	}
}

// What was under way before the trace, or is unsure for what was lost, makes no wrong guesses:
// until it is over nothing is known, and then everything.
func TestUnsure(t *testing.T) {
	var r requests
	r.post(post(7, "SEND", 2)) // behind two that nobody has seen
	want(t, "a Send of one of them", r.begin(send), 0)
	r.post(post(8, "SEND", 1)) // they have completed
	want(t, "a Send that may be that of 7", r.begin(send), 0)
	r.complete(completed(7, "SEND"), true)
	want(t, "the next Send", r.begin(send), 8)
	r.post(post(9, "READ", 1))
	r.forget()
	want(t, "a Read behind what was lost", r.begin(read), 0)
	want(t, "an answer behind what was lost", r.answer(read, true), 0)
	r.complete(completed(8, "SEND"), true)
	r.complete(completed(9, "READ"), true)
	r.post(post(10, "READ", 0))
	want(t, "a Read", r.begin(read), 10)
	r.post(post(11, "READ", 0)) // the queue pair was reset: 10 never completes
	want(t, "a Read of another life", r.begin(read), 11)
}

// What never goes out does not grow without a bound.
func TestBound(t *testing.T) {
	var r requests
	for i := range uint64(3 * maxRequests) {
		r.post(post(i, "SEND", 0))
		r.complete(completed(i, "SEND"), true)
		if len(r.list) > maxRequests || r.done > len(r.list) {
			t.Fatalf("%d requests are kept, %d of them done", len(r.list), r.done)
		}
	}
}
