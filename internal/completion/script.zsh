#compdef PROGRAM
_FUNCTION() {
	local line
	local -a found
	while IFS= read -r line; do
		found+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
	done < <(PROGRAM ASKS "${(@)words[2,CURRENT]}" 2>/dev/null)
	if (( $#found )); then
		_describe PROGRAM found
	else
		_files
	fi
}
if [ "$funcstack[1]" = _FUNCTION ]; then
	_FUNCTION "$@"
else
	compdef _FUNCTION PROGRAM
fi
