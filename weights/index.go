package weights

import (
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// parseIndex reads a model.safetensors.index.json: which shard holds which tensor.
func parseIndex(file string, text []byte) (map[string]string, error) {
	s := &scanner{text: text}
	var where map[string]string
	seen := map[string]bool{}
	err := s.object(func(key string) (err error) {
		if seen[key] {
			return formatError(file, "", "key %s given twice", quote(key))
		}
		seen[key] = true
		if key != "weight_map" {
			return s.skip(0)
		}
		where, err = parseWeightMap(file, s)
		return err
	})
	if err == nil {
		err = s.end()
	}
	if _, ok := err.(*FormatError); err != nil && !ok {
		err = formatError(file, "", "not a shard index: %v", err)
	}
	if err == nil && len(where) == 0 {
		err = formatError(file, "", "no weight_map, or an empty one")
	}
	return where, err
}

func parseWeightMap(file string, s *scanner) (map[string]string, error) {
	where := map[string]string{}
	err := s.object(func(tensor string) error {
		shard, err := s.name()
		if err != nil {
			return err
		}
		if _, ok := where[tensor]; ok {
			return formatError(file, tensor, "listed twice")
		}
		if !insideFolder(shard) {
			return formatError(file, tensor, "shard %s is not a file inside the model's folder", quote(shard))
		}
		where[tensor] = shard
		return nil
	})
	return where, err
}

// insideFolder reports whether a slash-separated name can only mean something below the folder, on any system.
func insideFolder(name string) bool {
	return fs.ValidPath(name) && name != "." && !strings.ContainsAny(name, "\\:\x00") && filepath.IsLocal(filepath.FromSlash(name))
}

// shards lists the distinct files of an index, sorted.
func shards(where map[string]string) []string {
	return slices.Compact(slices.Sorted(maps.Values(where)))
}
