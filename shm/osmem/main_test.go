package osmem

import (
	"testing"

	"github.com/vrnic/vrnic/shm/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m, LiveRegions.Load, helperMemory) }
