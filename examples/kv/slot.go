package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
)

// A slot of the table holds one key with its value:
//
//	 0  lock      8 octets, in the server's byte order, as atomics want it: odd while a client writes
//	 8  checksum  4 octets, of all that follows
//	12  key       2 octets: its length
//	14  value     2 octets: its length
//	16            the key, then the value
//
// A Read may see a part of the slot as it was and a part as it is. It is whole if the lock is even
// and the checksum is right. A slot of zeroes is free.
type slot []byte

const (
	slotLen   = 256
	numSlots  = 1024
	lockLen   = 8
	headerLen = 16
)

var errTorn = errors.New("the slot is being written")

func (s slot) lock() uint64 { return binary.NativeEndian.Uint64(s) }

// set fills in all but the lock.
func (s slot) set(key, value string) error {
	if key == "" || headerLen+len(key)+len(value) > slotLen {
		return fmt.Errorf("want a key, and with its value at most %d octets", slotLen-headerLen)
	}
	clear(s[lockLen:])
	binary.BigEndian.PutUint16(s[12:], uint16(len(key)))
	binary.BigEndian.PutUint16(s[14:], uint16(len(value)))
	copy(s[headerLen:], key)
	copy(s[headerLen+len(key):], value)
	binary.BigEndian.PutUint32(s[8:], s.checksum())
	return nil
}

// parse returns what the slot holds; an empty key if it is free.
func (s slot) parse() (key, value string, err error) {
	k := int(binary.BigEndian.Uint16(s[12:]))
	v := int(binary.BigEndian.Uint16(s[14:]))
	switch {
	case k == 0 && s.lock()%2 == 0:
		return "", "", nil
	case s.lock()%2 == 1, binary.BigEndian.Uint32(s[8:]) != s.checksum(), headerLen+k+v > slotLen:
		return "", "", errTorn
	}
	b := s[headerLen:]
	return string(b[:k]), string(b[k : k+v]), nil
}

func (s slot) checksum() uint32 { return crc32.ChecksumIEEE(s[12:]) }

// home is the slot where a search for key begins; it goes on with those behind it.
func home(key string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(key)) // a hash's Write never fails
	return h.Sum64() % numSlots
}
