package ledger

import "fmt"

// counted is a set of numbered things with reference counts; number 0 is never given out.
type counted struct {
	what string
	refs []int32
	free []int32 // a stack
}

func newCounted(what string, n int) counted {
	return counted{what, make([]int32, n), descending(n)}
}

// descending is n-1 .. 1, so that a stack gives the lowest first.
func descending(n int) []int32 {
	s := make([]int32, 0, n-1)
	for i := n - 1; i > 0; i-- {
		s = append(s, int32(i))
	}
	return s
}

// take gives out a free one; the caller has made sure that there is one.
func (c *counted) take() int32 {
	i := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.refs[i] = 1
	return i
}

func (c *counted) share(i int32) {
	if c.refs[i] < 1 {
		panic(fmt.Sprintf("ledger: free %s %d shared", c.what, i))
	}
	c.refs[i]++
}

func (c *counted) drop(i int32) {
	if c.refs[i] < 1 {
		panic(fmt.Sprintf("ledger: free %s %d dropped", c.what, i))
	}
	c.refs[i]--
	if c.refs[i] == 0 {
		c.free = append(c.free, i)
	}
}

// used is how many are owned.
func (c *counted) used() int { return len(c.refs) - 1 - len(c.free) }

// check compares with the owners counted independently.
func (c *counted) check(owners []int32) error {
	free := make([]bool, len(c.refs))
	for _, i := range c.free {
		if i < 1 || int(i) >= len(free) || free[i] {
			return fmt.Errorf("%s %d is twice or wrongly in the free list", c.what, i)
		}
		free[i] = true
	}
	if owners[0] != 0 || c.refs[0] != 0 {
		return fmt.Errorf("null %s 0 has %d owners", c.what, owners[0])
	}
	for i := 1; i < len(c.refs); i++ {
		if c.refs[i] != owners[i] || free[i] != (owners[i] == 0) {
			return fmt.Errorf("%s %d: %d references, %d owners, free: %v", c.what, i, c.refs[i], owners[i], free[i])
		}
	}
	return nil
}
