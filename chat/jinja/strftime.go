package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftimeLayouts maps the directives that are Go layouts.
var strftimeLayouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'h': "Jan", 'd': "02", 'e': "_2", 'm': "01",
	'y': "06", 'Y': "2006", 'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'Z': "MST", 'j': "002",
	'D': "01/02/06", 'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'x': "01/02/06", 'X': "15:04:05",
	'c': "Mon Jan _2 15:04:05 2006", 'z': "-0700",
}

// strftime formats t as C's strftime does in the C locale; directives it does
// not know stay as they are.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		unpadded := format[i] == '-' && i+1 < len(format)
		if unpadded {
			i++
		}
		field := strftimeField(t, format[i])
		if field == "" { // unknown: % stays, what follows is text
			b.WriteByte('%')
			i--
			continue
		}
		if unpadded {
			field = strings.TrimLeft(field[:len(field)-1], "0 ") + field[len(field)-1:]
		}
		b.WriteString(field)
	}
	return b.String()
}

func strftimeField(t time.Time, directive byte) string {
	if layout, ok := strftimeLayouts[directive]; ok {
		return t.Format(layout)
	}
	switch directive {
	case '%':
		return "%"
	case 'n':
		return "\n"
	case 't':
		return "\t"
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000)
	case 's':
		return fmt.Sprint(t.Unix())
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1)
	case 'w':
		return fmt.Sprint(int(t.Weekday()))
	}
	return ""
}
