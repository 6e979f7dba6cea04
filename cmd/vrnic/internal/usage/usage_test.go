package usage

import "testing"

func TestFold(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"", "\n"},
		{"short", "short\n"},
		{"   as wide as it is, not wider", "   as wide as it is, not wider\n"},
		{"   what is  long goes on below the text",
			"   what is  long goes on below\n            the text\n"},
		{"   a sentence that has no gap goes on", "   a sentence that has no gap\n   goes on\n"},
		{"one-word-that-is-wider-than-a-line and more", "one-word-that-is-wider-than-a-line and more\n"},
	} {
		if got := fold(tt.line+"\n", 30); got != tt.want {
			t.Errorf("%q becomes %q, want %q", tt.line, got, tt.want)
		}
	}
}

// Paragraphs are of full lines, however their source is broken; what is indented stays.
func TestReflow(t *testing.T) {
	const text = "One that is\nbroken in its source,\nhere.\n\n   a list\n" +
		"   of two  that is wider than it\nand behind it\ntext.\n"
	const want = "One that is broken\nin its source, here.\n\n   a list\n" +
		"   of two  that is wider than it\nand behind it text."
	if got := reflow(text, 20); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
