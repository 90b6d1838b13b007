package sim

import (
	"time"

	"substrate/coordinator"
)

// reservation notes since when each GPU belongs to a reservation.
func (j *judge) reservation(id string, rec reservationRecord) {
	before := j.reservations[id].since
	rec.since = map[string]time.Time{}
	for _, s := range rec.Shares {
		for _, g := range s.Devices {
			at, ok := before[s.Node+" "+g]
			if !ok {
				at = time.Now()
			}
			rec.since[s.Node+" "+g] = at
		}
	}
	j.reservations[id] = rec
}

// foreign: no GPU of a reservation runs anybody else's reserved or on-demand work that was placed there after it began (rule 10).
// What was held before goes on as what ran before does.
func (j *judge) foreign(a *allocation, r *vrun) {
	if a.run() != runOf(r) {
		return // an order of a time before; whether it may run is judged elsewhere
	}
	for id, rec := range j.reservations {
		if !rec.Ended.IsZero() || !time.Now().Before(rec.Until) {
			continue
		}
		for _, g := range r.gpus {
			since, ok := rec.since[r.node.id+" "+g]
			if !ok {
				continue
			}
			j.w.count("starts on reserved GPUs")
			late := a.record.Placed.After(since) && (a.held.IsZero() || a.held.After(since))
			if late && a.spec.Class != coordinator.ClassBatch && a.record.Reservation != id {
				j.w.fail("%s of class %s begins on GPU %s of %s, which reservation %s has", r.spec.ID, a.spec.Class, g, r.node.id, id)
			}
		}
	}
}
