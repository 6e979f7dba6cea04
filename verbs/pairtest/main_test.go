package pairtest

import (
	"testing"

	"github.com/vrnic/vrnic/verbs/internal/ctest"
)

func TestMain(m *testing.M) { ctest.Main(m) }
