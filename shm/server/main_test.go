package server

import (
	"testing"

	"github.com/vrnic/vrnic/shm/internal/proctest"
	"github.com/vrnic/vrnic/shm/osmem"
)

func TestMain(m *testing.M) { proctest.Main(m, osmem.LiveRegions.Load, helperProcess) }
