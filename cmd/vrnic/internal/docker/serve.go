package docker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

const (
	// maxRequest bounds what is read of a request.
	maxRequest = 1 << 20
	// mediaType is that of Docker's plugins.
	mediaType = "application/vnd.docker.plugins.v1.2+json"
	// patience bounds how long a request takes to arrive.
	patience = 10 * time.Second
)

// Serve answers Docker at l until ctx ends, and closes l. Endpoints stay: another driver may go on.
func (d *Driver) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: d.handler(), ReadTimeout: patience,
		ErrorLog: slog.NewLogLogger(d.log.Handler(), slog.LevelWarn)}
	served, cancel := context.WithCancel(ctx)
	defer cancel()
	answered := make(chan error, 1)
	context.AfterFunc(served, func() { answered <- server.Shutdown(context.Background()) })
	err := server.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	cancel()
	err = errors.Join(err, <-answered) // what is under way is done
	d.forget()
	return errors.Join(err, l.Close())
}

// handler has a function for each call of a driver.
func (d *Driver) handler() http.Handler {
	mux := http.NewServeMux()
	answer(d, mux, "Plugin.Activate", func(context.Context, emptyReply) (any, error) {
		return activateReply{Implements: []string{"NetworkDriver"}}, nil
	})
	answer(d, mux, "NetworkDriver.GetCapabilities", func(context.Context, emptyReply) (any, error) {
		return capabilityReply{Scope: "local", ConnectivityScope: "local"}, nil
	})
	answer(d, mux, "NetworkDriver.CreateNetwork", d.createNetwork)
	answer(d, mux, "NetworkDriver.AllocateNetwork", func(context.Context, emptyReply) (any, error) {
		return allocateReply{Options: map[string]string{}}, nil
	})
	answer(d, mux, "NetworkDriver.CreateEndpoint", d.createEndpoint)
	answer(d, mux, "NetworkDriver.EndpointOperInfo", d.info)
	answer(d, mux, "NetworkDriver.Join", d.join)
	answer(d, mux, "NetworkDriver.Leave", d.leave)
	answer(d, mux, "NetworkDriver.DeleteEndpoint", d.deleteEndpoint)
	// A network is the daemon's switch, which knows nothing of it; and nodes are Swarm's.
	for _, call := range []string{"DeleteNetwork", "FreeNetwork", "DiscoverNew", "DiscoverDelete",
		"ProgramExternalConnectivity", "RevokeExternalConnectivity"} {
		answer(d, mux, "NetworkDriver."+call, func(context.Context, emptyReply) (any, error) {
			return emptyReply{}, nil
		})
	}
	return mux
}

// answer has f answer a call. Its error goes to Docker's user in words.
func answer[Request any](d *Driver, mux *http.ServeMux, call string,
	f func(context.Context, Request) (any, error)) {
	mux.HandleFunc("POST /"+call, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", mediaType)
		reply := any(emptyReply{})
		var req Request
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&req)
		if err != nil && r.ContentLength != 0 {
			w.WriteHeader(http.StatusBadRequest)
		} else {
			// It is done to its end: Docker does not take it back when it has waited too long.
			reply, err = f(context.WithoutCancel(r.Context()), req)
		}
		if err != nil {
			d.log.Warn("refused", "call", call, "err", err)
			reply = errorReply{Err: err.Error()}
		}
		if err := json.NewEncoder(w).Encode(reply); err != nil {
			d.log.Warn("no answer", "call", call, "err", err)
		}
	})
}
