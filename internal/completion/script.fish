# fish completion for PROGRAM
function __FUNCTION_next
	set -l words (commandline -opc)
	PROGRAM ASKS $words[2..-1] (commandline -ct) 2>/dev/null
end
complete -c PROGRAM -f -n 'test -n "$(__FUNCTION_next)"' -a '(__FUNCTION_next)'
