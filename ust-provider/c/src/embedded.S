/*
 * Shared objects that blkkin_init() loads, embedded so that the daemon's machine needs no other
 * file. A file that could not be built is empty.
 */
	.macro embedded name, file
	.global \name
	.hidden \name
	.type \name, %object
	.global \name\()_end
	.hidden \name\()_end
	.type \name\()_end, %object
	.balign 16
\name:
	.incbin "\file"
\name\()_end:
	.byte 0
	.size \name, . - \name
	.endm

	.section .rodata
	embedded blkkin_probe_bytes, BLKKIN_PROBE_FILE
	embedded blkkin_slot_bytes, BLKKIN_SLOT_FILE
	.section .note.GNU-stack, "", %progbits
