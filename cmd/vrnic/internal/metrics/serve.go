package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"

	"github.com/vrnic/vrnic/cmd/vrnic/internal/unixsocket"
)

// What a reader may take of the daemon: whoever reaches the listener must not be able to use up its
// descriptors or its processors.
const (
	maxConnections = 16
	maxScrapes     = 2 // at once; who comes beyond is told so (503)
	patience       = 10 * time.Second
	// hurry bounds a request's headers: who sends half of them keeps a place, and scrapers wait for
	// ten seconds.
	hurry = 2 * time.Second
)

const maxPath = 107 // sun_path of unix(7), which ends in a zero

// CheckAddr says whether addr can be where metrics are: HOST:PORT, or a path, which has a slash.
func CheckAddr(addr string) error {
	if IsPath(addr) {
		if len(addr) > maxPath {
			return fmt.Errorf("metrics %q: the path of a socket has at most %d octets", addr, maxPath)
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return fmt.Errorf("metrics %q is neither ADDRESS:PORT nor the path of a socket: %w", addr, err)
	}
	return nil
}

// IsPath says that addr is the path of a Unix socket.
func IsPath(addr string) bool { return strings.ContainsRune(addr, filepath.Separator) }

// A Server answers scrapes until it is closed.
type Server struct {
	listener net.Listener
	http     http.Server
	path     string        // of a Unix socket
	done     chan struct{} // closed when Serve has ended; nil: it has not begun
}

// Listen makes the listener, which nobody is answered on before Serve. A socket at a path is for
// the daemon's user only.
func Listen(addr string) (_ *Server, err error) {
	s := new(Server)
	if !IsPath(addr) {
		if s.listener, err = net.Listen("tcp", addr); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		return s, nil
	}
	if s.listener, err = unixsocket.Listen(addr); err != nil {
		return nil, fmt.Errorf("metrics %s: %w", addr, err)
	}
	s.path = addr
	return s, nil
}

// Strangers says that others than this machine's users may reach the listener.
func (s *Server) Strangers() bool {
	a, err := netip.ParseAddrPort(s.listener.Addr().String())
	return s.path == "" && (err != nil || !a.Addr().IsLoopback())
}

// Addr is where the listener is.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve begins to answer: version is what built_info tells.
func (s *Server) Serve(c *Collector, version string, log *slog.Logger) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(c, collectors.NewGoCollector())
	info := prometheus.NewGauge(prometheus.GaugeOpts{Name: "vrnic_build_info",
		Help: "What the daemon is built from; always 1.", ConstLabels: prometheus.Labels{
			"version": version}})
	info.Set(1)
	reg.MustRegister(info)

	errlog := slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorLog: errlog,
		MaxRequestsInFlight: maxScrapes, EnableOpenMetrics: true}))
	s.http = http.Server{Handler: mux, ErrorLog: errlog, ReadHeaderTimeout: hurry,
		ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: 3 * patience,
		MaxHeaderBytes: 16 << 10}
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		err := s.http.Serve(netutil.LimitListener(s.listener, maxConnections))
		if !errors.Is(err, http.ErrServerClosed) {
			log.Error("metrics are not served any more", "err", err)
		}
	}()
}

// Close ends the answers under way, and removes the socket unless it is somebody else's by now.
func (s *Server) Close() error {
	err := s.http.Close()
	if s.done == nil {
		return errors.Join(err, s.listener.Close())
	}
	<-s.done
	return err
}
