// Judges histories of file system operations with porcupine, beside the checker in Rust. Reads
// histories from standard input: one operation per line, and an empty line at the end of each.
// Prints one line per history: ok, illegal or unknown.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Time limit of one history.
const patience = 10 * time.Second

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	var history []porcupine.Operation
	for lines.Scan() {
		line := lines.Text()
		if line != "" {
			operations, err := parse(line, len(history))
			if err != nil {
				fmt.Fprintln(os.Stderr, "porcupine:", err)
				os.Exit(1)
			}
			history = append(history, operations...)
			continue
		}
		result := porcupine.CheckOperationsTimeout(model(), history, patience)
		fmt.Println(strings.ToLower(string(result)))
		history = nil
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "porcupine:", err)
		os.Exit(1)
	}
}

// record is one line.
type record struct {
	Mount  int                        `json:"mount"`
	Thread int                        `json:"thread"`
	CallNs int64                      `json:"call_ns"`
	Op     map[string]json.RawMessage `json:"op"`
	Answer *struct {
		AtNs    int64           `json:"at_ns"`
		Outcome json.RawMessage `json:"outcome"`
	} `json:"answer"`
}

// Arguments of all operations; each has some of them.
type arguments struct {
	Dir       uint64 `json:"dir"`
	Name      string `json:"name"`
	FromDir   uint64 `json:"from_dir"`
	From      string `json:"from"`
	ToDir     uint64 `json:"to_dir"`
	To        string `json:"to"`
	Inode     uint64 `json:"inode"`
	At        int    `json:"at"`
	Cells     int    `json:"cells"`
	Token     uint64 `json:"token"`
	Exclusive bool   `json:"exclusive"`
}

// call is the input of the model.
type call struct {
	kind  string
	owner string
	// Differs between the calls of a history.
	number int
	arguments
}

// answer is the output of the model.
type answer struct {
	missing bool
	done    bool
	short   bool
	errno   int
	found   *found
	names   []string
	tokens  []uint64
}

type found struct {
	Inode uint64 `json:"inode"`
	Kind  string `json:"kind"`
	Cells int    `json:"cells"`
	Links int    `json:"links"`
}

// A call without an answer returns at the end of time.
const never = int64(1) << 62

func parse(line string, number int) ([]porcupine.Operation, error) {
	var r record
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return nil, err
	}
	c := call{owner: fmt.Sprintf("%d.%d", r.Mount, r.Thread), number: number}
	for kind, raw := range r.Op {
		c.kind = kind
		if err := json.Unmarshal(raw, &c.arguments); err != nil {
			return nil, err
		}
	}
	one := func(c call, a answer, at int64) porcupine.Operation {
		return porcupine.Operation{Input: c, Output: a, Call: r.CallNs, Return: at}
	}
	if r.Answer == nil {
		switch c.kind {
		case "open", "stat", "fstat", "list", "read":
			return nil, nil
		}
		return []porcupine.Operation{one(c, answer{missing: true}, never)}, nil
	}
	a, err := outcome(r.Answer.Outcome)
	if err != nil {
		return nil, err
	}
	if c.kind != "stat" || a.found == nil {
		return []porcupine.Operation{one(c, a, r.Answer.AtNs)}, nil
	}
	// A stat by name is a lookup and an fstat, each at its own moment.
	lookup, fstat := c, c
	lookup.kind, fstat.kind = "open", "fstat"
	fstat.Inode = a.found.Inode
	operations := []porcupine.Operation{one(lookup, a, r.Answer.AtNs)}
	if a.found.Kind == "file" {
		operations = append(operations, one(fstat, a, r.Answer.AtNs))
	}
	return operations, nil
}

func outcome(raw json.RawMessage) (answer, error) {
	var word string
	if json.Unmarshal(raw, &word) == nil {
		if word != "done" {
			return answer{}, fmt.Errorf("unknown outcome %q", word)
		}
		return answer{done: true}, nil
	}
	var parts struct {
		Inode      *found       `json:"inode"`
		Attributes *found       `json:"attributes"`
		Names      *[]string    `json:"names"`
		Data       *[][2]uint64 `json:"data"`
		Short      *struct{}    `json:"short"`
		Error      *int         `json:"error"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return answer{}, err
	}
	switch {
	case parts.Error != nil:
		return answer{errno: *parts.Error}, nil
	case parts.Short != nil:
		return answer{short: true}, nil
	case parts.Inode != nil:
		return answer{found: parts.Inode}, nil
	case parts.Attributes != nil:
		return answer{found: parts.Attributes}, nil
	case parts.Names != nil:
		return answer{names: append([]string{}, *parts.Names...)}, nil
	case parts.Data != nil:
		tokens := []uint64{}
		for _, run := range *parts.Data {
			for i := uint64(0); i < run[1]; i++ {
				tokens = append(tokens, run[0])
			}
		}
		return answer{tokens: tokens}, nil
	}
	return answer{}, fmt.Errorf("unknown outcome %s", raw)
}
