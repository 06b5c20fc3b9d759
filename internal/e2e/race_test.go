//go:build race

package e2e

// How the programs are built and run: with the race detector, as the tests.
const (
	racing      = true
	raceOptions = "GORACE=halt_on_error=0"
)

var buildFlags = []string{"-race"}
