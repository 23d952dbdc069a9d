//go:build ignore

// Reads language_cases.json, a list of [template, data], runs each by Go's own text/template with the options that
// Ollama sets, and prints language.json: what the template puts out, or null where Go refuses it.
//
//	go run generate.go < language_cases.json > language.json
package main

import (
	"bytes"
	"encoding/json"
	"os"
	"text/template"
)

type result struct {
	Template string  `json:"template"`
	Data     any     `json:"data"`
	Output   *string `json:"output"`
}

// Numbers that JSON writes without a point are integers here, as in the requests that templates see.
func native(value any) any {
	switch value := value.(type) {
	case json.Number:
		if whole, err := value.Int64(); err == nil {
			return int(whole)
		}
		fraction, _ := value.Float64()
		return fraction
	case []any:
		for index := range value {
			value[index] = native(value[index])
		}
	case map[string]any:
		for key := range value {
			value[key] = native(value[key])
		}
	}
	return value
}

func run(source string, data any) *string {
	functions := template.FuncMap{"json": func(value any) string {
		text, _ := json.Marshal(value)
		return string(text)
	}}
	parsed, err := template.New("").Option("missingkey=zero").Funcs(functions).Parse(source)
	if err != nil {
		return nil
	}
	var output bytes.Buffer
	if err := parsed.Execute(&output, native(data)); err != nil {
		return nil
	}
	text := output.String()
	return &text
}

func main() {
	decoder := json.NewDecoder(os.Stdin)
	decoder.UseNumber()
	var cases [][2]any
	if err := decoder.Decode(&cases); err != nil {
		panic(err)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	os.Stdout.WriteString("[\n")
	for index, one := range cases {
		if index > 0 {
			os.Stdout.WriteString(",")
		}
		source := one[0].(string)
		plain, _ := json.Marshal(one[1])
		encoder.Encode(result{source, json.RawMessage(plain), run(source, one[1])})
	}
	os.Stdout.WriteString("]\n")
}
