// Package config is what `vrnic up` can be asked for: flags of the command line and lines of a file
// become the same settings, which one builder takes, so that the two cannot differ.
package config
