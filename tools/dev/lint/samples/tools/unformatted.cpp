int   unformatted( );
