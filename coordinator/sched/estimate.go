package sched

import "container/heap"

// estimate steps the decision forward from known end to known end and notes when each waiting
// entry starts (rule 16). The state of the decision is used up by it.
func (d *decision) estimate(waits []Wait) {
	pending := 0
	for _, q := range d.queues {
		q.admit(estimateDepth)
		pending += len(q.waiting)
	}
	d.onStart = func(e *entry) {
		e.estimate, e.known = d.c.now, true
		pending--
	}
	d.limit = d.c.work + estimateWork
	steps := 0
	for pending > 0 && !d.spent && steps < estimateSteps && d.step() {
		d.passAll(false)
		steps++
		d.spent = d.spent || d.c.work > d.limit
	}
	unfinished := d.spent || steps == estimateSteps
	i := 0
	for _, q := range d.queues {
		for _, e := range q.all {
			if e.began && !e.known {
				continue // started in the plan itself
			}
			if !e.known && unfinished && e.plan != nil && !e.plan.atNever() {
				e.estimate, e.known = e.plan.from, true
			}
			if e.known {
				waits[i].EstimatedStart = d.s.Now.Add(e.estimate)
			}
			i++
		}
	}
}

// step moves to the next known end and releases everything that ends then.
func (d *decision) step() bool {
	ends := &d.c.ends
	if len(*ends) == 0 || (*ends)[0].to == never {
		return false
	}
	d.c.now = (*ends)[0].to
	for len(*ends) > 0 && (*ends)[0].to == d.c.now {
		d.c.release(heap.Pop(ends).(*claim))
	}
	return true
}
