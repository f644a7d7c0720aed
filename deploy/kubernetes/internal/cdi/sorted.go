package cdi

import (
	"maps"
	"slices"
)

// sorted is the keys in order, so that the same devices make the same file.
func sorted(of map[string]string) []string { return slices.Sorted(maps.Keys(of)) }
