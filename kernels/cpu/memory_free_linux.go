package cpu

import (
	"bytes"
	"os"
	"strconv"
)

// memoryFree is MemAvailable of the system or the room of the control group, whichever is less.
func memoryFree() int64 {
	free := memAvailable()
	limit, err := readNumber("/sys/fs/cgroup/memory.max")
	if err != nil {
		return free
	}
	used, err := readNumber("/sys/fs/cgroup/memory.current")
	if err != nil {
		return free
	}
	return max(0, min(free, limit-used))
}

func memAvailable() int64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return memoryUnknown
	}
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) < 2 || string(fields[0]) != "MemAvailable:" {
			continue
		}
		if kib, err := strconv.ParseInt(string(fields[1]), 10, 64); err == nil {
			return kib << 10
		}
	}
	return memoryUnknown
}

func readNumber(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
}
