package udp_test

import (
	"testing"

	"github.com/vrnic/vrnic/netstack/netstacktest"
)

func TestMain(m *testing.M) { netstacktest.Main(m) }
