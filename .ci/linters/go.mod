module linters

go 1.26.3

require (
	github.com/golangci/unconvert v0.0.0-20250410112200-a129a6e6413e
	github.com/gordonklaus/ineffassign v0.2.0
	github.com/nishanths/exhaustive v0.17.1
	golang.org/x/tools v0.52.0
	gvisor.dev/gvisor v0.0.0-20260701204157-69c2d17aea96
)

require (
	golang.org/x/mod v0.42.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/text v0.36.0 // indirect
)
