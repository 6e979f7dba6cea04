package logs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/vrnic/vrnic/internal/limitlog"
)

// Each part has its level, and what none is set for that of all; a daemon's limits stand before it.
func TestLevels(t *testing.T) {
	for _, tt := range []struct{ set, want string }{
		{"", "all 1 2 3,clients 1 2 3,rdma 1 2 3,"},
		{"debug", "all 0 1 2 3,clients 0 1 2 3,rdma 0 1 2 3,"},
		{"error,clients=debug", "all 3,clients 0 1 2 3,rdma 3,"},
		{"rdma=WARN,clients=error", "all 1 2 3,clients 3,rdma 2 3,"},
		{"rdma=warn,rdma=info,warn", "all 2 3,clients 2 3,rdma 1 2 3,"},
	} {
		levels := Levels{All: slog.LevelInfo}
		if tt.set != "" {
			if err := levels.Set(tt.set); err != nil {
				t.Fatal(err)
			}
		}
		var out bytes.Buffer
		base := slog.New(limitlog.New(New(&out, JSON, levels)))
		got := ""
		for _, part := range []string{"all", "clients", "rdma"} {
			log := base
			if part != "all" {
				log = base.With(Part, part).With("session", 7).WithGroup("g")
			}
			for i := range 4 {
				log.Log(t.Context(), slog.LevelDebug+4*slog.Level(i), fmt.Sprint(i), "x", 1)
			}
			got += part
			for line := range strings.Lines(out.String()) {
				var record struct{ Msg, Part string }
				if err := json.Unmarshal([]byte(line), &record); err != nil {
					t.Fatalf("%s: %v", line, err)
				}
				if part != "all" && record.Part != part {
					t.Errorf("%s: no part %s", line, part)
				}
				got += " " + record.Msg
			}
			got += ","
			out.Reset()
		}
		if got != tt.want {
			t.Errorf("%q: %s, want %s", tt.set, got, tt.want)
		}
	}
	levels := Levels{All: slog.LevelWarn}
	for _, bad := range []string{"", "loud", "clients=loud", "nobody=info", "info,", "=info"} {
		if err := levels.Set(bad); err == nil || levels.All != slog.LevelWarn || len(levels.Of) != 0 {
			t.Errorf("%q: %v, %+v", bad, err, levels)
		}
	}
}

// Text is what there is without a format.
func TestFormats(t *testing.T) {
	var out bytes.Buffer
	slog.New(New(&out, "", Levels{})).Info("hello", "n", 1)
	if !strings.HasSuffix(out.String(), "level=INFO msg=hello n=1\n") {
		t.Error(out.String())
	}
	for format, ok := range map[string]bool{"": true, Text: true, JSON: true, "xml": false} {
		if (CheckFormat(format) == nil) != ok {
			t.Errorf("%q", format)
		}
	}
}
