package load

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"reprise/internal/plainjson"
)

// TraceRow is a request of a trace.
type TraceRow struct {
	At            time.Duration // after the first
	Input, Output int           // tokens
	Blocks        []int         // ids of the prompt's blocks of BlockTokens tokens; equal ids mean equal tokens
}

// BlockTokens is the size of the blocks that traces name.
const BlockTokens = 512

const (
	maxRows = 1 << 22
	maxLine = 16 << 20
)

// ReadTrace reads a trace: JSON lines with timestamp (milliseconds), input_length, output_length and hash_ids, as Mooncake
// publishes them, or CSV whose header names a time and two token counts, as the Azure and BurstGPT traces do. Rows are
// sorted by time. Errors name the line.
func ReadTrace(r io.Reader) ([]TraceRow, error) {
	b := bufio.NewReaderSize(r, 1<<16)
	first, err := b.Peek(sampleBytes)
	switch {
	case err != nil && err != io.EOF:
		return nil, err
	case len(first) == 0:
		return nil, errors.New("the trace is empty")
	case !isText(first):
		return nil, errors.New("this is no text; " + traceFormats)
	}
	var rows []TraceRow
	if first[0] == '{' {
		rows, err = mooncake(b)
	} else {
		rows, err = csvTrace(b)
	}
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, errors.New("the trace has no requests")
	}
	slices.SortStableFunc(rows, func(a, b TraceRow) int { return int(min(max(a.At-b.At, -1), 1)) })
	start := rows[0].At
	for i := range rows {
		rows[i].At -= start
	}
	return rows, nil
}

const traceFormats = "a trace is JSON lines with timestamp, input_length and output_length (Mooncake), or CSV with a header (Azure, BurstGPT), not compressed"

// sampleBytes of a file show whether it is text.
const sampleBytes = 4096

// isText reports whether the beginning of a file is UTF-8 without NUL; its last character may be cut off.
func isText(begin []byte) bool {
	for i := 0; i < len(begin); {
		r, n := utf8.DecodeRune(begin[i:])
		if r == 0 || r == utf8.RuneError && n == 1 && utf8.FullRune(begin[i:]) {
			return false
		}
		i += n
	}
	return true
}

// lines calls f with every line that is not empty.
func lines(r io.Reader, f func(number int, line []byte) error) error {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 1<<16), maxLine)
	n := 0
	for s.Scan() {
		if n++; n > maxRows {
			return fmt.Errorf("more than %d lines", maxRows)
		}
		if line := strings.TrimSpace(s.Text()); line != "" {
			if err := f(n, []byte(line)); err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	return nil
}

func mooncake(r io.Reader) ([]TraceRow, error) {
	var rows []TraceRow
	err := lines(r, func(_ int, line []byte) error {
		var in struct {
			Timestamp *float64 `json:"timestamp"`
			Input     int      `json:"input_length"`
			Output    int      `json:"output_length"`
			Hashes    []int    `json:"hash_ids"`
		}
		if err := plainjson.Decode(line, &in, false); err != nil {
			return fmt.Errorf("not a JSON object with timestamp, input_length and output_length: %w", err)
		}
		if in.Timestamp == nil {
			return errors.New("no timestamp")
		}
		row := TraceRow{Input: in.Input, Output: in.Output, Blocks: in.Hashes}
		if err := row.setTime(*in.Timestamp / 1e3); err != nil {
			return err
		}
		rows = append(rows, row)
		return row.check()
	})
	return rows, err
}

func (t *TraceRow) setTime(seconds float64) error {
	if !(math.Abs(seconds) <= maxSeconds*4) { // Unix times too; not NaN
		return fmt.Errorf("time %v is out of range", seconds)
	}
	t.At = time.Duration(seconds * float64(time.Second))
	return nil
}

func (t *TraceRow) check() error {
	if t.Input < 1 || t.Output < 1 || t.Input > MaxLength || t.Output > MaxLength {
		return fmt.Errorf("%d tokens in and %d out: both must be from 1 to %d", t.Input, t.Output, MaxLength)
	}
	return nil
}

// columnNames are the headers of the CSV traces, in small letters: time, tokens in, tokens out.
var columnNames = [3][]string{
	{"timestamp", "time", "arrived_at"},
	{"contexttokens", "request tokens", "input_length", "num_prefill_tokens"},
	{"generatedtokens", "response tokens", "output_length", "num_decode_tokens"},
}

// csvTrace leaves out rows without an answer, which BurstGPT has for failed requests.
func csvTrace(r io.Reader) ([]TraceRow, error) {
	c := csv.NewReader(r)
	c.ReuseRecord = true
	header, err := c.Read()
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, traceFormats)
	}
	var columns [3]int
	for i, names := range columnNames {
		columns[i] = slices.IndexFunc(header, func(h string) bool {
			return slices.Contains(names, strings.ToLower(strings.Trim(h, " \ufeff")))
		})
		if columns[i] < 0 {
			return nil, fmt.Errorf("line 1: the header %.200q names none of %s; %s", strings.Join(header, ","), strings.Join(names, ", "), traceFormats)
		}
	}
	var rows []TraceRow
	for {
		record, err := c.Read()
		if err == io.EOF {
			return rows, nil
		}
		if err != nil {
			return nil, err
		}
		row, err := csvRow(record[columns[0]], record[columns[1]], record[columns[2]])
		if err != nil || len(rows) == maxRows {
			line, _ := c.FieldPos(0)
			return nil, fmt.Errorf("line %d: %w", line, errors.Join(err, tooMany(len(rows))))
		}
		if row.Output > 0 {
			rows = append(rows, row)
		}
	}
}

func tooMany(rows int) error {
	if rows == maxRows {
		return fmt.Errorf("more than %d rows", maxRows)
	}
	return nil
}

func csvRow(at, input, output string) (row TraceRow, err error) {
	if row.Input, err = strconv.Atoi(input); err != nil {
		return row, fmt.Errorf("%.40q is no number of tokens", input)
	}
	if row.Output, err = strconv.Atoi(output); err != nil {
		return row, fmt.Errorf("%.40q is no number of tokens", output)
	}
	seconds, err := strconv.ParseFloat(at, 64)
	if err != nil {
		when, problem := time.Parse("2006-01-02 15:04:05.999999999", at)
		if problem != nil {
			return row, fmt.Errorf("%q is neither seconds nor a date and time", at)
		}
		row.At = time.Duration(when.Unix())*time.Second + time.Duration(when.Nanosecond())
	} else if err := row.setTime(seconds); err != nil {
		return row, err
	}
	if row.Output == 0 {
		return row, nil
	}
	return row, row.check()
}
