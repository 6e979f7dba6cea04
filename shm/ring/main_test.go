package ring

import (
	"testing"

	"github.com/vrnic/vrnic/shm/internal/proctest"
)

func TestMain(m *testing.M) { proctest.Main(m, nil, nil) }
