# Turns the tables public.txt, legacy.txt, private.txt and interposed.txt into a linker version script (-v want=map) or into assembler aliases
# (-v want=asm). x86-64 and aarch64.

function target(kind) {
    if (kind == "int") return "burst_refuse_int"
    if (kind == "ptr") return "burst_refuse_ptr"
    if (kind == "none") return "burst_refuse_none"
    if (kind == "data") return "data"
    if (kind ~ /^own:/) return substr(kind, 5)
    print "symbols.awk: unknown kind " kind > "/dev/stderr"; exit 1
}
# `at`: "@@" if this is the version that whoever asks for none gets (dlsym); such a name has none of its versions otherwise.
function alias(node, name, to, at,    local_name) {
    local_name = "burst_alias_" ++aliases
    if (to == "data") {
        body = body "\t.data\n\t.globl " local_name "\n\t.type " local_name ", %object\n\t.size " local_name ", 8\n"
        body = body local_name ":\t.quad 0\n\t.text\n"
    } else {
        body = body "\t.globl " local_name "\n\t.type " local_name ", %function\n\t.hidden " to "\n"
        body = body local_name ":\tJUMP " to "\n\t.size " local_name ", . - " local_name "\n"
    }
    body = body "\t.symver " local_name ", " name at node "\n"
}
# Patterns for all names but some: what differs from each of them in its first letters, up to INTERPOSED_LETTERS.
function others(    at, prefix, next_letters, patterns, i) {
    if (!interposed_count) return "*;"
    for (i = 1; i <= interposed_count; i++)
        for (at = 0; at < INTERPOSED_LETTERS; at++) {
            prefix = substr(interposed[i], 1, at)
            if (index(next_letters[prefix], substr(interposed[i], at + 1, 1)) == 0)
                next_letters[prefix] = next_letters[prefix] substr(interposed[i], at + 1, 1)
        }
    for (prefix in next_letters) patterns = patterns " " prefix "[!" next_letters[prefix] "]*;"
    return patterns
}
/^# NODES/ { for (i = 3; i <= NF; i++) nodes[++node_count] = $i; next }
/^#/ || NF == 0 { next }
FILENAME ~ /\/public\.txt$/ {
    if (!($1 in public)) order[++publics] = $1
    public[$1] = public[$1] "        " $2 ";\n"
    next
}
FILENAME ~ /\/legacy\.txt$/ { alias($1, $2, target($3), "@"); next }
FILENAME ~ /\/interposed\.txt$/ { interposed[++interposed_count] = $1; next }
FILENAME ~ /\/private\.txt$/ { for (i = 1; i <= node_count; i++) alias("IBVERBS_PRIVATE_" nodes[i], $1, target($2), i == node_count ? "@@" : "@") }
BEGIN { INTERPOSED_LETTERS = 4 }
END {
    for (i = 1; i <= node_count; i++) alias("IBVERBS_PRIVATE_" nodes[i], "verbs_register_driver_" nodes[i], "burst_refuse_none", "@@")
    if (want == "map") {
        for (i = 1; i <= publics; i++) {
            printf "%s {\n    global:\n%s", order[i], public[order[i]]
            # Only in the last node: in a node that has aliases the pattern would hide them.
            if (i == publics) printf "    local: %s\n", others()
            printf "}%s;\n", (i == 1 ? "" : " " order[i - 1])
        }
        for (i = 1; i <= node_count; i++) printf "IBVERBS_PRIVATE_%s { };\n", nodes[i]
    } else {
        print "#if defined(__x86_64__)\n#define JUMP jmp\n#else\n#define JUMP b\n#endif\n\t.text"
        printf "%s", body
        print "\t.section .note.GNU-stack,\"\",%progbits"
    }
}
