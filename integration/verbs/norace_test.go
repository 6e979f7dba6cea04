//go:build !race

package verbs

const raceDetector = false
