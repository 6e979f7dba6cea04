// Package bulk copies messages that are too long for the caches.
//
// An ordinary store to a line that no cache has reads it first, and displaces what others need. So
// the runtime, too, copies 1 MiB and more by stores that go past the caches; but it waits for its
// source most of the time, since the processor guesses no further than the page what is read next.
// Here the four pages behind are asked for, side by side, while four are copied.
package bulk

// block is how many octets are copied while as many are asked for: four pages.
const block = 4 * 4096

// Copy is copy for slices of one length. What it has written is in memory and in no cache, and is
// seen before what the caller writes next. With more, the source goes on behind src, and that is
// copied next.
func Copy(dst, src []byte, more bool) {
	src = src[:len(dst)]
	head := toLine(dst)
	if !fast || len(dst) < head+block || overlap(dst, src) {
		copy(dst, src)
		return
	}
	copy(dst[:head], src)
	dst, src = dst[head:], src[head:]
	ahead := 0
	if more {
		ahead = block
	}
	n := len(dst) / block * block
	blocks(&dst[0], &src[0], n, ahead)
	copy(dst[n:], src[n:])
}
