package logs

import (
	"errors"
	"fmt"
	"path/filepath"

	"substrate/coordinator"
)

// maxPacks is how many workflows keep their pack open, with its index in memory.
const maxPacks = 64

// acquire returns the entry of a run's rank, locked and counted as in use. It waits while the run's
// workflow is being removed.
func (l *Logs) acquire(run coordinator.RunID, rank string) (*runFiles, error) {
	workflow, path, err := runPath(run)
	if err != nil {
		return nil, err
	}
	for {
		r, idle, wait, err := l.lookupRun(workflow, path, rank)
		if err != nil {
			return nil, err
		}
		if wait != nil {
			<-wait
			continue
		}
		for _, old := range idle {
			_ = old.close() // its data was written before it fell idle
		}
		r.mu.Lock()
		if !r.gone {
			return r, nil
		}
		l.release(r) // removed while we waited; a new one starts empty
	}
}

// lookupRun finds or makes the entry and takes out those that have been idle the longest.
func (l *Logs) lookupRun(workflow coordinator.WorkflowID, path, rank string) (r *runFiles, idle []*runFiles, wait <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, nil, ErrClosed
	}
	if c, removing := l.removing[workflow]; removing {
		return nil, nil, c, nil
	}
	key := path + rank
	r = l.runs[key]
	if r == nil {
		r = &runFiles{workflow: workflow, key: key, full: filepath.Join(l.dir, path), rank: rank}
		r.place = l.recent.PushFront(r)
		l.runs[key] = r
	}
	r.users++
	l.recent.MoveToFront(r.place)
	for e := l.recent.Back(); e != nil && l.recent.Len() > l.opts.MaxOpen; {
		old := e.Value.(*runFiles)
		e = e.Prev()
		if old.users == 0 {
			l.forgetRun(old)
			idle = append(idle, old)
		}
	}
	return r, idle, nil, nil
}

func (l *Logs) forgetRun(r *runFiles) {
	l.recent.Remove(r.place)
	delete(l.runs, r.key)
}

func (l *Logs) release(r *runFiles) {
	r.mu.Unlock()
	l.mu.Lock()
	r.users--
	l.mu.Unlock()
}

// withPack calls do with the workflow's pack, locked and loaded. A writer has its run locked, which
// a removal waits for, so only a reader may (and must) wait for the removal.
func (l *Logs) withPack(workflow coordinator.WorkflowID, reader bool, do func(*pack) error) error {
	for {
		p, idle, wait, err := l.lookupPack(workflow, reader)
		if err != nil {
			return err
		}
		if wait != nil {
			<-wait
			continue
		}
		for _, old := range idle {
			_ = old.close()
		}
		p.mu.Lock()
		gone := p.gone
		if !gone {
			if err = p.load(); err == nil {
				err = do(p)
			}
		}
		p.mu.Unlock()
		l.mu.Lock()
		p.users--
		l.mu.Unlock()
		if !gone {
			return err
		}
	}
}

func (l *Logs) lookupPack(workflow coordinator.WorkflowID, reader bool) (p *pack, idle []*pack, wait <-chan struct{}, err error) {
	dir, err := workflowDir(workflow)
	if err != nil {
		return nil, nil, nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, nil, nil, ErrClosed
	}
	if c, removing := l.removing[workflow]; removing && reader {
		return nil, nil, c, nil
	}
	p = l.packs[workflow]
	if p == nil {
		p = &pack{workflow: workflow, dir: filepath.Join(l.dir, dir)}
		p.place = l.recentPacks.PushFront(p)
		l.packs[workflow] = p
	}
	p.users++
	l.recentPacks.MoveToFront(p.place)
	for e := l.recentPacks.Back(); e != nil && l.recentPacks.Len() > maxPacks; {
		old := e.Value.(*pack)
		e = e.Prev()
		if old.users == 0 {
			l.forgetPack(old)
			idle = append(idle, old)
		}
	}
	return p, idle, nil, nil
}

func (l *Logs) forgetPack(p *pack) {
	l.recentPacks.Remove(p.place)
	delete(l.packs, p.workflow)
}

// detach takes out and closes what is open of one workflow, or of all, and waits for those at work
// on it: runs first, because they use the pack.
func (l *Logs) detach(mine func(coordinator.WorkflowID) bool) error {
	var runs []*runFiles
	l.mu.Lock()
	for _, r := range l.runs {
		if mine(r.workflow) {
			runs = append(runs, r)
		}
	}
	for _, r := range runs {
		l.forgetRun(r)
	}
	l.mu.Unlock()
	var failed []error
	for _, r := range runs {
		r.mu.Lock()
		r.gone = true
		failed = append(failed, r.close())
		r.mu.Unlock()
	}
	var packs []*pack
	l.mu.Lock()
	for _, p := range l.packs {
		if mine(p.workflow) {
			packs = append(packs, p)
		}
	}
	for _, p := range packs {
		l.forgetPack(p)
	}
	l.mu.Unlock()
	for _, p := range packs {
		p.mu.Lock()
		p.gone = true
		failed = append(failed, p.close())
		p.mu.Unlock()
	}
	return errors.Join(failed...)
}

// Close closes all files. Later calls fail.
func (l *Logs) Close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	if err := l.detach(func(coordinator.WorkflowID) bool { return true }); err != nil {
		return fmt.Errorf("cannot close logs: %w", err)
	}
	return nil
}
