package ping

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/vrnic/vrnic/rdma"
)

const (
	DefaultPort = 7174
	DefaultSize = 64 // octets
	// MinSize holds the longest heading and the NUL.
	MinSize = len(heading) + len("9223372036854775807") + len(": ") + 1
	// MaxSize is more than rping itself takes, which is RpingMaxSize.
	MaxSize      = 1 << 20
	RpingMaxSize = 64<<10 - 1

	// serverMinSize is what a server has room for at least, so that sizes need not agree.
	serverMinSize = 64 << 10

	defaultConnectTimeout = 10 * time.Second
	endTimeout            = 5 * time.Second // for the peer to close, after our Disconnect
)

// Config says what a client or a server does.
type Config struct {
	Addr netip.AddrPort // client: the server; server: where to listen
	// Size is the length of a buffer in octets, MinSize to MaxSize. A server takes clients of
	// up to 64 KiB whatever it says.
	Size     int
	Count    int  // client: rounds, 0 until the context ends
	Verbose  bool // write the data of each round to Out
	Validate bool // client: compare what came back
	// Persistent makes a server take any number of clients, also at once, until the context ends.
	Persistent bool
	MPA        rdma.MPAParam
	SCTP       bool // client: over SCTP
	ROI        bool // client: rdma.ROI in place of iWARP

	ConnectTimeout time.Duration // client; 0: 10 s
	RoundTimeout   time.Duration // client: for one answer; 0: none

	Out io.Writer // nil: discarded. Errors of single clients of a persistent server go there too.
}

// CheckSize says whether n can be a Config.Size.
func CheckSize(n int) error {
	if n < MinSize || n > MaxSize {
		return fmt.Errorf("size %d: want %d to %d octets (rping takes at most %d)", n, MinSize, MaxSize,
			RpingMaxSize)
	}
	return nil
}

func (c *Config) check() error {
	if c.Size == 0 {
		c.Size = DefaultSize
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = defaultConnectTimeout
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	if c.Count < 0 {
		return fmt.Errorf("count %d: want 0 (no end) or more", c.Count)
	}
	return CheckSize(c.Size)
}

// A Result is what a client has seen.
type Result struct {
	Rounds        int
	Size          int
	Verified      bool // each round's data was compared
	Min, Avg, Max time.Duration
}

func (r Result) String() string {
	what := "not compared"
	if r.Verified {
		what = "data verified"
	}
	s := fmt.Sprintf("%d rounds of %d octets, %s", r.Rounds, r.Size, what)
	if r.Rounds > 0 {
		s += fmt.Sprintf(", round min/avg/max %v/%v/%v",
			r.Min.Round(time.Microsecond), r.Avg.Round(time.Microsecond), r.Max.Round(time.Microsecond))
	}
	return s
}

var (
	// ErrMismatch says that the data came back changed.
	ErrMismatch = errors.New("data mismatch")
	// errEnded says that the peer has ended the connection gracefully.
	errEnded = errors.New("the peer has disconnected")
)
