//go:build !race

package e2e

// How the programs are built and run: as released.
const (
	racing      = false
	raceOptions = "GORACE="
)

var buildFlags []string
