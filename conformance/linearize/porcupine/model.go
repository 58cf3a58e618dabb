package main

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// tree is a whole file system. It is written independently of the model in Rust: inodes hold their
// cells one by one, directories hold their names, and a number of an inode that no call has
// returned yet is learned from the first lookup.
type tree struct {
	inodes map[uint64]*inode
	// Keys of the inodes whose numbers are known.
	keys map[uint64]uint64
	text string
}

type inode struct {
	isDir   bool
	removed bool
	links   int
	cells   []uint64
	names   map[string]uint64
	locks   map[string]bool
}

// unknown is the key of the inode that a call makes without returning its number.
const unknown = uint64(1) << 62

func model() porcupine.Model {
	return porcupine.Model{
		Partition: partition,
		Init: func() interface{} {
			root := &inode{isDir: true, names: map[string]uint64{}}
			start := &tree{
				inodes: map[uint64]*inode{0: root},
				keys:   map[uint64]uint64{0: 0},
			}
			start.text = start.describe()
			return start
		},
		Step: func(state, input, output interface{}) (bool, interface{}) {
			return state.(*tree).step(input.(call), output.(answer))
		},
		Equal: func(a, b interface{}) bool { return a.(*tree).text == b.(*tree).text },
		Hash: func(state interface{}) uint64 {
			h := fnv.New64a()
			h.Write([]byte(state.(*tree).text))
			return h.Sum64()
		},
	}
}

// partition separates the locks, which nothing else touches.
func partition(history []porcupine.Operation) [][]porcupine.Operation {
	locks := map[uint64][]porcupine.Operation{}
	var rest []porcupine.Operation
	for _, operation := range history {
		c := operation.Input.(call)
		if c.kind == "lock" || c.kind == "unlock" {
			locks[c.Inode] = append(locks[c.Inode], operation)
		} else {
			rest = append(rest, operation)
		}
	}
	parts := [][]porcupine.Operation{rest}
	for _, part := range locks {
		parts = append(parts, part)
	}
	return parts
}

func (t *tree) describe() string {
	var all []string
	for number, key := range t.keys {
		all = append(all, fmt.Sprintf("%d=%d", number, key))
	}
	for key, i := range t.inodes {
		names := make([]string, 0, len(i.names))
		for name, target := range i.names {
			names = append(names, fmt.Sprintf("%s:%d", name, target))
		}
		sort.Strings(names)
		locks := make([]string, 0, len(i.locks))
		for owner, exclusive := range i.locks {
			locks = append(locks, fmt.Sprintf("%s:%v", owner, exclusive))
		}
		sort.Strings(locks)
		all = append(all, fmt.Sprint(key, i.isDir, i.removed, i.links, names, locks, runs(i.cells)))
	}
	sort.Strings(all)
	return strings.Join(all, "\n")
}

// runs is a short text for cells.
func runs(cells []uint64) string {
	var text strings.Builder
	for start := 0; start < len(cells); {
		end := start
		for end < len(cells) && cells[end] == cells[start] {
			end++
		}
		fmt.Fprintf(&text, "%dx%d ", cells[start], end-start)
		start = end
	}
	return text.String()
}

func (t *tree) copy() *tree {
	next := &tree{inodes: map[uint64]*inode{}, keys: map[uint64]uint64{}}
	for number, key := range t.keys {
		next.keys[number] = key
	}
	for key, i := range t.inodes {
		twin := *i
		twin.cells = slices.Clone(i.cells)
		twin.names = map[string]uint64{}
		for name, target := range i.names {
			twin.names[name] = target
		}
		twin.locks = map[string]bool{}
		for owner, exclusive := range i.locks {
			twin.locks[owner] = exclusive
		}
		next.inodes[key] = &twin
	}
	return next
}

// step returns whether an answer is possible, and the next state. A call without an answer may
// have done nothing: it is put at the end then, where nothing sees its effect.
func (t *tree) step(c call, a answer) (bool, interface{}) {
	next := t.copy()
	possible, errnos := next.perform(c, a)
	if a.missing {
		if !possible {
			return true, t
		}
		next.text = next.describe()
		return true, next
	}
	if a.errno != 0 {
		return slices.Contains(errnos, a.errno), t
	}
	next.text = next.describe()
	return possible && !a.short, next
}

// Error numbers.
const (
	noEntry      = 2
	again        = 11
	exists       = 17
	notDirectory = 20
	isDirectory  = 21
	invalid      = 22
	notEmpty     = 39
	stale        = 116
)

func (t *tree) at(number uint64) *inode {
	key, known := t.keys[number]
	if !known {
		return nil
	}
	return t.inodes[key]
}

// directory returns nil and the errors if it is removed.
func (t *tree) directory(number uint64) (*inode, []int) {
	dir := t.at(number)
	if dir == nil || dir.removed {
		return nil, []int{noEntry, stale}
	}
	return dir, nil
}

// perform changes the tree if the answer is a success, and returns the errors that are possible
// in its place. Every success is compared with the answer.
func (t *tree) perform(c call, a answer) (bool, []int) {
	switch c.kind {
	case "create", "mkdir":
		dir, errnos := t.directory(c.Dir)
		if dir == nil {
			return false, errnos
		}
		if _, there := dir.names[c.Name]; there {
			return false, []int{exists}
		}
		key := unknown + uint64(c.number)
		dir.names[c.Name] = key
		if c.kind == "mkdir" {
			t.inodes[key] = &inode{isDir: true, names: map[string]uint64{}}
			return a.missing || a.done, nil
		}
		t.inodes[key] = &inode{links: 1}
		if a.missing {
			return true, nil
		}
		return a.found != nil && t.learn(key, a.found), nil
	case "open", "stat":
		dir := t.at(c.Dir)
		if dir == nil {
			return false, []int{noEntry, stale}
		}
		key, there := dir.names[c.Name]
		switch {
		case !there && dir.removed:
			return false, []int{noEntry, stale}
		case !there:
			return false, []int{noEntry}
		}
		return a.found != nil && t.learn(key, a.found), nil
	case "unlink", "rmdir":
		dir, errnos := t.directory(c.Dir)
		if dir == nil {
			return false, errnos
		}
		key, there := dir.names[c.Name]
		if !there {
			return false, []int{noEntry}
		}
		target := t.inodes[key]
		switch {
		case c.kind == "unlink" && target.isDir:
			return false, []int{isDirectory}
		case c.kind == "rmdir" && !target.isDir:
			return false, []int{notDirectory}
		case target.isDir && len(target.names) > 0:
			return false, []int{notEmpty, exists}
		}
		delete(dir.names, c.Name)
		target.links--
		target.removed = target.isDir
		return a.missing || a.done, nil
	case "rename":
		possible, errnos := t.rename(c)
		return possible && (a.missing || a.done), errnos
	case "link":
		file, dir := t.at(c.Inode), t.at(c.Dir)
		var errnos []int
		if dir == nil || dir.removed || file == nil || file.links == 0 {
			errnos = []int{noEntry, stale}
		}
		if dir != nil {
			if _, there := dir.names[c.Name]; there {
				errnos = append(errnos, exists)
			}
		}
		if errnos != nil {
			return false, errnos
		}
		dir.names[c.Name] = t.keys[c.Inode]
		file.links++
		return a.missing || a.done, nil
	case "list":
		dir := t.at(c.Inode)
		if dir == nil {
			return false, nil
		}
		names := []string{}
		for name := range dir.names {
			names = append(names, name)
		}
		sort.Strings(names)
		var errnos []int
		if dir.removed {
			errnos = []int{noEntry, stale}
		}
		return a.names != nil && slices.Equal(names, a.names), errnos
	case "lock", "unlock":
		return t.lock(c) && (a.missing || a.done), []int{again}
	}
	file := t.at(c.Inode)
	if file == nil {
		return false, nil
	}
	switch c.kind {
	case "fstat":
		return a.found != nil && a.found.Kind == "file" && a.found.Inode == c.Inode &&
			a.found.Cells == len(file.cells) && a.found.Links == file.links, nil
	case "read":
		from := min(c.At, len(file.cells))
		to := min(c.At+c.Cells, len(file.cells))
		return a.tokens != nil && slices.Equal(file.cells[from:to], a.tokens), nil
	case "write":
		for len(file.cells) < c.At+c.Cells {
			file.cells = append(file.cells, 0)
		}
		for i := 0; i < c.Cells; i++ {
			file.cells[c.At+i] = c.Token
		}
	case "append":
		for i := 0; i < c.Cells; i++ {
			file.cells = append(file.cells, c.Token)
		}
	case "truncate":
		for len(file.cells) < c.Cells {
			file.cells = append(file.cells, 0)
		}
		file.cells = file.cells[:c.Cells]
	default:
		return false, nil
	}
	return a.missing || a.done, nil
}

// learn compares an inode with what a call returned, and takes its number if it has none.
func (t *tree) learn(key uint64, f *found) bool {
	kind := "file"
	if t.inodes[key].isDir {
		kind = "directory"
	}
	if known, there := t.keys[f.Inode]; there {
		return known == key && f.Kind == kind
	}
	for _, known := range t.keys {
		if known == key {
			return false
		}
	}
	t.keys[f.Inode] = key
	return f.Kind == kind
}

func (t *tree) rename(c call) (bool, []int) {
	from, to := t.at(c.FromDir), t.at(c.ToDir)
	if from == nil || to == nil || from.removed || to.removed {
		return false, []int{noEntry, stale}
	}
	key, there := from.names[c.From]
	if !there {
		return false, []int{noEntry}
	}
	source := t.inodes[key]
	if source.isDir && t.below(t.keys[c.ToDir], key) {
		return false, []int{invalid}
	}
	if old, there := to.names[c.To]; there {
		target := t.inodes[old]
		switch {
		case old == key:
			return true, nil
		case target.isDir && !source.isDir:
			return false, []int{isDirectory}
		case !target.isDir && source.isDir:
			return false, []int{notDirectory}
		case len(target.names) > 0:
			return false, []int{notEmpty, exists}
		}
		target.links--
		target.removed = target.isDir
	}
	delete(from.names, c.From)
	to.names[c.To] = key
	return true, nil
}

// below returns whether a directory is the other one or below it.
func (t *tree) below(dir, top uint64) bool {
	if dir == top {
		return true
	}
	for _, target := range t.inodes[top].names {
		if t.inodes[target].isDir && t.below(dir, target) {
			return true
		}
	}
	return false
}

// lock takes or releases a lock. The partition of a lock has no file.
func (t *tree) lock(c call) bool {
	file, there := t.inodes[c.Inode]
	if !there {
		file = &inode{locks: map[string]bool{}}
		t.inodes[c.Inode] = file
	}
	if c.kind == "unlock" {
		delete(file.locks, c.owner)
		return true
	}
	for owner, exclusive := range file.locks {
		if owner != c.owner && (exclusive || c.Exclusive) {
			return false
		}
	}
	file.locks[c.owner] = c.Exclusive
	return true
}
