package impair

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// DefaultLimit is how many frames may be on their way where the words do not say it: netem's.
const DefaultLimit = 1000

// Impairs reports whether s does anything to any frame.
func (s *Schedule) Impairs() bool {
	bare := *s
	bare.Seed, bare.Limit = 0, 0
	return bare != Schedule{}
}

// lossy reports whether frames are lost by chance.
func (s *Schedule) lossy() bool { return s.Loss > 0 || s.Gilbert != Gilbert{} }

// finish sets what was not said, and says what does not go together.
func (s *Schedule) finish() error {
	switch {
	case s.Early > 0 && s.Delay == 0:
		return errors.New("reorder sends frames before others that have a delay: say which delay")
	case s.Rate == 0 && s.Queue > 0:
		return errors.New("queue is the one before the bottleneck: say its rate")
	case s.Rate == 0 && s.Mark > 0:
		return errors.New("mark looks at the queue before the bottleneck: say its rate")
	case s.ECN && !s.lossy():
		return errors.New("ecn marks what would be lost: say which loss")
	}
	if s.Limit == 0 {
		s.Limit = DefaultLimit
	}
	return nil
}

// add reads words over what s is.
func (s *Schedule) add(words []string) (err error) {
	w := list{words}
	for len(w.words) > 0 && err == nil {
		switch key := w.next(); key {
		case "delay", "latency":
			err = w.delay(s)
		case "loss", "drop":
			err = w.loss(s)
		case "duplicate":
			s.Duplicate, err = w.share(key, &s.Correlation.Duplicate)
		case "corrupt":
			s.Corrupt, err = w.share(key, &s.Correlation.Corrupt)
		case "reorder":
			if s.Early, err = w.share(key, &s.Correlation.Reorder); err == nil {
				s.Gap = 1
				if w.take("gap") {
					s.Gap, err = w.count("gap", maxLimit)
				}
			}
		case "rate":
			s.Rate, err = w.rate()
		case "queue":
			s.Queue, err = w.size(key)
		case "mark":
			s.Mark, err = w.size(key)
		case "limit":
			s.Limit, err = w.count(key, maxLimit)
		case "ecn":
			s.ECN = true
		default:
			err = fmt.Errorf("%q: want delay, loss, duplicate, corrupt, reorder, rate, queue, mark, ecn or "+
				"limit", key)
		}
	}
	return err
}

// maxLimit bounds limit: so many frames are kept in memory.
const maxLimit = 1 << 17

// A list is words that are read from the front.
type list struct{ words []string }

func (w *list) next() string {
	s := w.words[0]
	w.words = w.words[1:]
	return s
}

// take reads the next word if it is that one.
func (w *list) take(word string) bool {
	if len(w.words) == 0 || w.words[0] != word {
		return false
	}
	w.words = w.words[1:]
	return true
}

// number reports whether the next word begins as numbers do.
func (w *list) number() bool {
	return len(w.words) > 0 && w.words[0] != "" && strings.IndexByte("0123456789.", w.words[0][0]) >= 0
}

// value is the next word, which has to be there: what key says.
func (w *list) value(key string) (string, error) {
	if len(w.words) == 0 {
		return "", fmt.Errorf("%s: how much?", key)
	}
	return w.next(), nil
}

// delay TIME [JITTER [CORRELATION]] [distribution uniform|normal]
func (w *list) delay(s *Schedule) (err error) {
	s.Jitter, s.Normal, s.Correlation.Delay = 0, false, 0
	if s.Delay, err = w.duration("delay"); err != nil {
		return err
	}
	if w.take("jitter") || w.number() {
		if s.Jitter, err = w.duration("jitter"); err != nil {
			return err
		}
		if w.number() {
			if s.Correlation.Delay, err = w.percent("correlation of delay"); err != nil {
				return err
			}
		}
	}
	if !w.take("distribution") {
		return nil
	}
	name, err := w.value("distribution")
	switch {
	case err != nil:
		return err
	case s.Jitter == 0:
		return errors.New("distribution is that of the jitter: say how much of it")
	case name == "normal" && s.Correlation.Delay > 0:
		return errors.New("delay: a correlation goes with distribution uniform only")
	case name == "normal":
		s.Normal = true
	case name != "uniform":
		return fmt.Errorf("distribution %s: there are uniform and normal", name)
	}
	return nil
}

// loss [random] PERCENT [CORRELATION] [burst FRAMES], loss gemodel P [R [1-H [1-K]]]
func (w *list) loss(s *Schedule) (err error) {
	s.Loss, s.Burst, s.Gilbert, s.Correlation.Loss = 0, 0, Gilbert{}, 0
	if w.take("gemodel") {
		g := &s.Gilbert
		if g.P, err = w.percent("gemodel"); err != nil {
			return err
		}
		g.R, g.Bad = 1-g.P, 1
		for _, v := range []*float64{&g.R, &g.Bad, &g.Good} {
			if !w.number() {
				break
			}
			if *v, err = w.percent("gemodel"); err != nil {
				return err
			}
		}
		return nil
	}
	w.take("random")
	if s.Loss, err = w.share("loss", &s.Correlation.Loss); err != nil || !w.take("burst") {
		return err
	}
	n, err := w.count("burst", maxLimit)
	s.Burst = float64(n)
	switch {
	case err != nil:
		return err
	case s.Correlation.Loss > 0:
		return errors.New("loss: burst and a correlation do not go together")
	case s.Loss > 0.5:
		return errors.New("loss: with burst at most 50% is lost")
	}
	return nil
}

// share is a percentage and, perhaps, a correlation.
func (w *list) share(key string, correlation *float64) (share float64, err error) {
	*correlation = 0
	if share, err = w.percent(key); err == nil && w.number() {
		*correlation, err = w.percent("correlation of " + key)
	}
	return share, err
}

func (w *list) percent(key string) (float64, error) {
	s, err := w.value(key)
	if err != nil {
		return 0, err
	}
	f, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
	if err != nil || !(f >= 0 && f <= 100) {
		return 0, fmt.Errorf("%s %s: want a percentage, from 0%% to 100%%", key, s)
	}
	return f / 100, nil
}

func (w *list) count(key string, most int) (int, error) {
	s, err := w.value(key)
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		return 0, fmt.Errorf("%s %s: want a number from 1 to %d", key, s, most)
	}
	return n, nil
}

// scaled reads a number with a unit; a bare number has the unit "".
func (w *list) scaled(key, want string, units map[string]float64, most float64) (float64, error) {
	s, err := w.value(key)
	if err != nil {
		return 0, err
	}
	n := strings.LastIndexAny(s, "0123456789.") + 1
	unit, ok := units[strings.ToLower(s[n:])]
	f, err := strconv.ParseFloat(s[:n], 64)
	if f *= unit; !ok || err != nil || !(f >= 0 && f <= most) {
		return 0, fmt.Errorf("%s %s: want %s", key, s, want)
	}
	return f, nil
}

var times = map[string]float64{
	"ns": 1, "nsec": 1, "nsecs": 1, "": 1e3, "us": 1e3, "usec": 1e3, "usecs": 1e3, "ms": 1e6,
	"msec": 1e6, "msecs": 1e6, "s": 1e9, "sec": 1e9, "secs": 1e9, "m": 60e9, "min": 60e9,
}

func (w *list) duration(key string) (time.Duration, error) {
	f, err := w.scaled(key, "a time up to a day, as 5ms; a bare number is of microseconds", times,
		float64(24*time.Hour))
	return time.Duration(math.Round(f)), err
}

var rates = map[string]float64{
	"": 1, "bit": 1, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12, "kibit": 1 << 10,
	"mibit": 1 << 20, "gibit": 1 << 30, "bps": 8, "kbps": 8e3, "mbps": 8e6, "gbps": 8e9, "tbps": 8e12,
}

func (w *list) rate() (float64, error) {
	f, err := w.scaled("rate", "bits a second, as 100mbit; bps are octets a second", rates, 1e13)
	if err == nil && f < 8 {
		return 0, errors.New("rate: at least 8bit")
	}
	return f, err
}

var sizes = map[string]float64{
	"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30,
	"gb": 1 << 30,
}

func (w *list) size(key string) (int, error) {
	f, err := w.scaled(key, "octets, from 1 to 1g, as 64k", sizes, 1<<30)
	if err == nil && f < 1 {
		return 0, fmt.Errorf("%s: at least 1", key)
	}
	return int(f), err
}
